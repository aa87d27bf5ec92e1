"""The pages of the live view: templates, a style beside the report's, and one script that asks for what is new."""
