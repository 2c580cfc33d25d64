#!/bin/bash
#SBATCH --mem=2G --mem-per-cpu=1G
# refused: its memory is given twice
true
