#!/bin/bash
#SBATCH --ntasks=2
#SBATCH --gpus-per-task=2
#SBATCH --cpus-per-gpu=4
#
# means: name = 31-gpus-per-task
# means: devices = gpu:4
# means: cores = 16
# means: stdout = slurm-{job}.out
# means: env SLURM_GPUS_PER_TASK = 2

python train.py
