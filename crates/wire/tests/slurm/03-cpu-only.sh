#!/bin/bash
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=16
#SBATCH --mem-per-cpu=2G
#
# means: name = 03-cpu-only
# means: devices = cpu:16
# means: memory = 32768MiB
# means: stdout = slurm-{job}.out
# means: env SLURM_NTASKS = 1
# means: env SLURM_CPUS_ON_NODE = 16
# means: env SLURM_MEM_PER_CPU = 2048

python train.py
