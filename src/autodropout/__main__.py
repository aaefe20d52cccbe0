"""`python -m autodropout`: the commands, where no script of that name is on the path."""

from autodropout.cli import app

if __name__ == "__main__":  # worker processes import this module too
    app(prog_name="autodropout")
