"""The declaration of agents: code that compiles a module class, its settings and its tools into a spec."""
