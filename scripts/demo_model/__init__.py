"""Makes the bundled demo model: its corpus, its tokenizer, its training and its exam.

The code in this folder writes the corpus from word lists, so that no other text is needed. Nothing
here is part of the installed package.
"""
