#!/bin/bash
#SBATCH --ntasks=4
#SBATCH --cpus-per-task=2
#
# means: name = 04-tasks
# means: devices = cpu:8
# means: stdout = slurm-{job}.out
# means: env SLURM_NTASKS = 4
# means: env SLURM_NPROCS = 4
# means: env SLURM_TASKS_PER_NODE = 4

python train.py
