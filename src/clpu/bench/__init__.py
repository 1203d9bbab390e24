"""The benchmark: methods × seeds on a stream of tasks, actual and counterfactual, in resumable pieces of work.

`profiles` says how big, `plan` what is to be done, `pieces` what is trained and measured, `engine` where it runs, and
`run` puts it together.
"""
