"""The study of CIFAR-10 with 4,000 labels: the questions of Penn Treebank's, and their stages, with images."""
