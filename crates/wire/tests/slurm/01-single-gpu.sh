#!/bin/bash
#SBATCH --job-name=resnet50
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=8
#SBATCH --mem=32G
#SBATCH --time=12:00:00
#
# means: name = resnet50
# means: devices = gpu:1
# means: cores = 8
# means: memory = 32768MiB
# means: time_limit = 43200s
# means: stdout = slurm-{job}.out
# means: env SLURM_JOB_ID = {job}
# means: env SLURM_JOB_NAME = resnet50
# means: env SLURM_CPUS_PER_TASK = 8
# means: env SLURM_GPUS_ON_NODE = 1
# means: env SLURM_MEM_PER_NODE = 32768
# means: env SLURM_NNODES = 1

python train.py
