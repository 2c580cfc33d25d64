#!/bin/bash
#SBATCH --job-name "My Run"   # the name
#SBATCH -N1 -n1 --cpus-per-task 4
#
# means: name = my-run
# means: devices = cpu:4
# means: stdout = slurm-{job}.out
# means: env SLURM_JOB_NAME = My Run

python train.py
