"""Tests in a browser. They are a package, so that one browser serves all of them and ends before other tests begin."""
