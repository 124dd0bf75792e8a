"""How the bundled demo model is made: its corpus, its tokenizer, its training and its exam.

The corpus is written by the code in this folder from the word lists in it, so that no foreign
text is needed. Nothing here is part of the installed package.
"""
