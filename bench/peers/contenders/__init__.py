"""One file each: how somebody would write the works with that library."""
