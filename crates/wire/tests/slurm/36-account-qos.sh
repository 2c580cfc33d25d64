#!/bin/bash
#SBATCH --account=Vision-Lab
#SBATCH --qos=high
#SBATCH --partition=gpu
#SBATCH --mail-type=END
#SBATCH --mail-user=a@b.c
#
# means: name = 36-account-qos
# means: tenant = vision-lab
# means: priority = high
# means: stdout = slurm-{job}.out
# means: told --partition
# means: told --mail-type
# means: told --mail-user
# means: env SLURM_JOB_ACCOUNT = Vision-Lab
# means: env SLURM_JOB_PARTITION = gpu
# means: env SLURM_JOB_QOS = high

python train.py
