/* Rows of served tables for programs in C: feature stores, and servers without TensorFlow.
 *
 *   tsps_serving_table* table;
 *   if (tsps_serving_open("serve/42", "words", 0, &table) != 0) puts(tsps_serving_error());
 *   float* rows = malloc(n * tsps_serving_dim(table) * sizeof(float));
 *   if (tsps_serving_lookup(table, keys, n, rows) != 0) puts(tsps_serving_error());
 *   tsps_serving_close(table);
 *
 * Link with libtsps_serving.so, which is in the same Python package. Any number of processes and
 * threads may look up rows; they share one copy in the page cache.
 */
#ifndef TSPS_SERVING_H_
#define TSPS_SERVING_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tsps_serving_table tsps_serving_table;

/* The results of calls. */
enum {
  TSPS_SERVING_OK = 0,
  TSPS_SERVING_INVALID_ARGUMENT = 1,
  TSPS_SERVING_NOT_FOUND = 2,
  TSPS_SERVING_OUT_OF_RANGE = 3, /* a key is outside of a bounded table */
  TSPS_SERVING_DAMAGED = 4,      /* a file is not what was written */
  TSPS_SERVING_FAILED = 5        /* another error, such as one of the file system */
};

/* Opens a table.
 *
 * version: the folder of a version, or the file of a table in its folder `assets`.
 * name: the name of the table, which is that of its layer; NULL: `version` is a file, or the
 * version has one table. verify: not 0: reads all files and checks their checksums. table: is set
 * to the table, which tsps_serving_close frees, or to NULL after an error.
 */
int tsps_serving_open(const char* version, const char* name, int verify,
                      tsps_serving_table** table);

/* Returns the number of floats of a row. */
size_t tsps_serving_dim(const tsps_serving_table* table);

/* Returns the training step whose rows the table has. */
uint64_t tsps_serving_step(const tsps_serving_table* table);

/* Writes the rows of n keys to `rows`, float[n][dim]. Keys may repeat. A key without a row gets its
 * initial value. Thread-safe. */
int tsps_serving_lookup(const tsps_serving_table* table, const int64_t* keys, size_t n,
                        float* rows);

/* Sets present[i] to 1 if keys[i] has a row, else to 0. Thread-safe. */
int tsps_serving_contains(const tsps_serving_table* table, const int64_t* keys, size_t n,
                          unsigned char* present);

/* Frees a table. NULL is allowed. */
void tsps_serving_close(tsps_serving_table* table);

/* Returns the text of the last error of this thread; "" if there was none. It is valid until the
 * next call of this thread. */
const char* tsps_serving_error(void);

#ifdef __cplusplus
}
#endif

#endif /* TSPS_SERVING_H_ */
