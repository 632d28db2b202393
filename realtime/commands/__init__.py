"""What ``voicewire`` can do: one module a command, with ``add_arguments(parser)`` and ``run(args)``."""
