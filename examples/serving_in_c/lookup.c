/* Prints the rows of keys of a served table:  lookup VERSION TABLE KEY...
 *
 *   package=$(python -c 'import tf_sparse_ps, os; print(os.path.dirname(tf_sparse_ps.__file__))')
 *   cc -Wall -Werror lookup.c -I"$package/include" -L"$package/lib" -ltsps_serving \
 *       -Wl,-rpath,"$package/lib" -o lookup
 *   ./lookup serve/42 words 3 1000000
 */
#include <stdio.h>
#include <stdlib.h>

#include "tsps_serving.h"

int main(int argc, char** argv) {
  if (argc < 4) {
    fprintf(stderr, "usage: lookup VERSION TABLE KEY...\n");
    return 2;
  }
  tsps_serving_table* table;
  if (tsps_serving_open(argv[1], argv[2], 0, &table) != TSPS_SERVING_OK) {
    fprintf(stderr, "%s\n", tsps_serving_error());
    return 1;
  }
  size_t n = (size_t)argc - 3, dim = tsps_serving_dim(table);
  int64_t* keys = malloc(n * sizeof(int64_t));
  float* rows = malloc(n * dim * sizeof(float));
  unsigned char* present = malloc(n);
  int status = keys == NULL || rows == NULL || present == NULL;
  for (size_t i = 0; status == 0 && i < n; ++i) keys[i] = strtoll(argv[3 + i], NULL, 10);
  if (status == 0 && (tsps_serving_lookup(table, keys, n, rows) != TSPS_SERVING_OK ||
                      tsps_serving_contains(table, keys, n, present) != TSPS_SERVING_OK)) {
    fprintf(stderr, "%s\n", tsps_serving_error());
    status = 1;
  }
  for (size_t i = 0; status == 0 && i < n; ++i) {
    printf("%lld %s", (long long)keys[i], present[i] ? "present" : "absent");
    for (size_t d = 0; d < dim; ++d) printf(" %.9g", rows[i * dim + d]);
    printf("\n");
  }
  free(keys);
  free(rows);
  free(present);
  tsps_serving_close(table);
  return status;
}
