# run this in the project's folder
export OPENAI_API_BASE=$url/v1 OPENAI_API_KEY=$key
aider --model openai/$model
