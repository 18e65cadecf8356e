/* Captures of streams. */
#ifndef TESTS_DRIVER_GRAPH_H
#define TESTS_DRIVER_GRAPH_H

#include "work.h"

/* The kind of a capture: its mode, and the flags of its stream. It is the state of a test. */
typedef struct capture_kind {
    int mode;
    unsigned stream_flags;
} capture_kind;
extern capture_kind global_non_blocking, thread_local_non_blocking,
    relaxed_non_blocking; /* streams that do not wait for the default one */
extern capture_kind global_blocking, thread_local_blocking, relaxed_blocking;

#define GRAPH_TEST(test, kind)                                                                                         \
    { #test "." #kind, test, NULL, NULL, &kind }
#define GRAPH_TESTS_NON_BLOCKING(test)                                                                                 \
    GRAPH_TEST(test, global_non_blocking), GRAPH_TEST(test, thread_local_non_blocking),                                \
        GRAPH_TEST(test, relaxed_non_blocking)
#define GRAPH_TESTS_BLOCKING(test)                                                                                     \
    GRAPH_TEST(test, global_blocking), GRAPH_TEST(test, thread_local_blocking), GRAPH_TEST(test, relaxed_blocking)

/* First in a test of graphs: its kind. The primary CUcontext is current then. */
const capture_kind *graph_kind_of(void **state);

void graph_begin(const capture_kind *kind, struct CUstream_st *stream);
/* Whether the stream is captured, and nothing has made its graph invalid. */
int graph_is_valid(struct CUstream_st *stream);
/* Ends a capture that is valid. */
void *graph_end(struct CUstream_st *stream);
/* Ends one that may not be. NULL: there is no graph, because something had made it invalid. */
void *graph_end_of_any(struct CUstream_st *stream);

/* The nodes of a graph of the calls of `w`, captured without anything else. */
size_t graph_nodes_of(const work *w, const capture_kind *kind, struct CUstream_st *stream);
/* The graph has `nodes` nodes, and each of several launches of it writes the results. It is destroyed. */
void graph_expect(void *graph, size_t nodes, const work *w, struct CUstream_st *stream, const unsigned char *results);
/* graph_expect() of another capture of the calls. */
void graph_capture_and_expect(const capture_kind *kind, size_t nodes, const work *w, struct CUstream_st *stream,
                              const unsigned char *results);

#endif
