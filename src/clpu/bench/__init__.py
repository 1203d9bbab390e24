"""The benchmark: methods × seeds on a stream of tasks, actual and counterfactual, in resumable pieces of work.

`profiles` says how big, `pieces` what is trained and measured, `engine` where it runs, `run` puts it together.
"""
