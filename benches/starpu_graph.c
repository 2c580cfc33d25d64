/* Empty tasks on StarPU, timed as `het bench graph` times its own: one vector a handle, a history
 * model on the kernel, from the first submission until all have ended.
 *
 * Usage: starpu_graph SHAPE TASKS ROUNDS, with STARPU_SCHED and STARPU_NCPU in the environment.
 * Prints microseconds a task, a line a round.
 */
#include <starpu.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HANDLES 256
#define BYTES 1024
#define WARM 1000

static void empty(void *buffers[], void *arguments)
{
	(void)buffers;
	(void)arguments;
}

static struct starpu_perfmodel model = {
	.type = STARPU_HISTORY_BASED,
	.symbol = "het_bench_graph_empty",
};

static struct starpu_codelet codelet(enum starpu_data_access_mode mode)
{
	struct starpu_codelet made;
	starpu_codelet_init(&made);
	made.cpu_funcs[0] = empty;
	made.cpu_funcs_name[0] = "empty";
	made.nbuffers = 1;
	made.modes[0] = mode;
	made.model = &model;
	made.name = "empty";
	return made;
}

static struct starpu_codelet reads, writes, changes;
static starpu_data_handle_t handles[HANDLES];
static char data[HANDLES][BYTES];

static int submit(const char *shape, long row, long tasks)
{
	if (!strcmp(shape, "independent"))
		return starpu_task_insert(&reads, STARPU_R, handles[row % HANDLES], 0);
	if (!strcmp(shape, "chain") || row + 1 == tasks)
		return starpu_task_insert(&changes, STARPU_RW, handles[0], 0);
	if (row == 0)
		return starpu_task_insert(&writes, STARPU_W, handles[0], 0);
	return starpu_task_insert(&reads, STARPU_R, handles[0], 0);
}

static int run(const char *shape, long tasks)
{
	for (long row = 0; row < tasks; row++)
		if (submit(shape, row, tasks) != 0)
			return 1;
	return starpu_task_wait_for_all();
}

int main(int count, char **words)
{
	if (count != 4)
		return 2;
	long tasks = atol(words[2]), rounds = atol(words[3]);
	if (starpu_init(NULL) != 0)
		return 3;
	reads = codelet(STARPU_R);
	writes = codelet(STARPU_W);
	changes = codelet(STARPU_RW);
	for (int row = 0; row < HANDLES; row++)
		starpu_vector_data_register(&handles[row], STARPU_MAIN_RAM, (uintptr_t)data[row],
					    BYTES, 1);
	int failed = run(words[1], WARM);
	for (long round = 0; round < rounds && !failed; round++) {
		double began = starpu_timing_now();
		failed = run(words[1], tasks);
		printf("%f\n", (starpu_timing_now() - began) / tasks);
	}
	for (int row = 0; row < HANDLES; row++)
		starpu_data_unregister(handles[row]);
	starpu_shutdown();
	return failed;
}
