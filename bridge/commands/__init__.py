"""The commands of `pgbridge`: what each does and prints, in a module named after it.

`bridge.service.cli` has their arguments, help and exit codes. `run` is `bridge.service.daemon`, `demo` is
`bridge.demo.show`; `prepare` is `bridge.service.warm_up`, `replay` and `skip --show` are
`bridge.service.replay`; `enable`, `disable`, `skip` and `reload` are in `alter`, `resync` and `drop` in `refresh`;
`check`, `snapshot` and `verify` have packages of their own.

To add a command, touch:

    bridge/commands/<command>.py               what it does and prints
    bridge/service/cli.py                      its arguments and help
    tests/bridge/commands/test_<command>.py    its tests
    tests/bridge/service/test_cli.py           `test_commands_of_the_contract` lists all commands
    bridge/service/cli_shared.py               its exit codes and example; from these comes docs/commands/<command>.md
"""
