"""`python -m holdfast.sender` prints the page of the connect string."""

from holdfast.sender.confpage import connect_string_markdown

if __name__ == "__main__":
    print(connect_string_markdown(), end="")  # noqa: T201
