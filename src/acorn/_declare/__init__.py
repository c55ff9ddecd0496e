"""From a module class to its spec: settings, generics, overrides and tools."""
