"""`python -m holdfast.config` prints the settings page."""

from holdfast.config.page import settings_markdown

if __name__ == "__main__":
    print(settings_markdown(), end="")  # noqa: T201
