# run this in the project's folder
export ANTHROPIC_BASE_URL=$url ANTHROPIC_API_KEY=$key
export ANTHROPIC_MODEL=$model ANTHROPIC_DEFAULT_HAIKU_MODEL=$model
claude
