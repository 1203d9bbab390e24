"""The commands of a durable agent, by topic; `clpu.store.cli` adds them to a program."""
