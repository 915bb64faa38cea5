"""The functions that users call: script, trace, compile, modules, explain; `names` lists the public
names."""
