"""Commands of ``voicewire``: one module a command, with ``add_arguments(parser)`` and ``run(args)``."""
