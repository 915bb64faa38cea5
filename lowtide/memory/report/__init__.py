"""The page of `prof.html()`: a template, its style and its script, as files of the package."""
