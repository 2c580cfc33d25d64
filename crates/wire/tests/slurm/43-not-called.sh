#!/bin/bash
  #SBATCH --nodes=9
#SBATCH -n1
# means: name = 43-not-called
# means: devices = cpu:1
# means: stdout = slurm-{job}.out
# means: env SLURM_SUBMIT_HOST = {node}
# means: env SLURM_JOB_ACCOUNT = default
command -v srun || echo srun is not here
