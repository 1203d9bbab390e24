"""The common part of benchmark and audit: a plan of jobs, engines that run them, and a folder that resumes.

`plan` checks what there is to do, `profiles` how big, `jobs` has a job and the file it leaves, `engine` and `cluster`
run jobs, `folder` knows which of them are done, and `recipe` is how all of it can be traced.
"""
