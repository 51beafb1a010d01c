"""The commands of `pgbridge`: each is a module, named after it, with what it does and prints.

`bridge.cli` has their arguments, help and exit codes. `run` is `bridge.daemon`, `demo` is `bridge.demo.show`; `disable`
is in `enable`.

To add a command, touch:

    bridge/commands/<command>.py               what it does and prints
    bridge/cli.py                              its arguments and help
    tests/bridge/commands/test_<command>.py    its tests
    tests/bridge/test_cli.py                   `test_commands_of_the_contract` lists all commands
    docs/operations.md                         what it is for
"""
