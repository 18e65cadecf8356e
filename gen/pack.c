/* Packs texts with liblzma. A text may continue another one: it copies from that, and begins with its probabilities. liblzma
 * writes each as a chunk of LZMA2, whose header is left away. */
#include "gen.h"

#include <lzma.h>
#include <stdlib.h>

enum {
    HISTORY_BYTES = 4 << 20,
    CHUNK_BYTES = 65536, /* of LZMA2, at most */
    WITH_PROPERTIES = 0xc0,
    IS_LZMA = 0x80
};

text pack(const text *const *texts, size_t count) {
    static unsigned char chunk[2 * CHUNK_BYTES];
    lzma_stream stream = LZMA_STREAM_INIT;
    lzma_options_lzma options;
    lzma_filter filters[] = {{LZMA_FILTER_LZMA2, &options}, {LZMA_VLI_UNKNOWN, NULL}};
    size_t packed = 0, begin = 0;
    text out = {0};
    lzma_lzma_preset(&options, 9 | LZMA_PRESET_EXTREME);
    options.lc = options.lp = options.pb = 0;
    options.dict_size = HISTORY_BYTES;
    if (lzma_raw_encoder(&stream, filters) != LZMA_OK)
        fail("liblzma can't begin");
    for (size_t i = 0; i < count; i++) {
        stream.next_in = (const unsigned char *)texts[i]->bytes;
        stream.avail_in = texts[i]->length;
        stream.next_out = chunk;
        stream.avail_out = sizeof chunk;
        if (lzma_code(&stream, LZMA_SYNC_FLUSH) != LZMA_STREAM_END)
            fail("liblzma can't pack a text");
        begin = chunk[0] >= WITH_PROPERTIES ? 6 : 5;
        packed = 256u * chunk[3] + chunk[4] + 1;
        if (chunk[0] < IS_LZMA || begin + packed != sizeof chunk - stream.avail_out)
            fail("liblzma does not pack a text as one chunk");
    }
    lzma_end(&stream);
    text_add_bytes(&out, (const char *)chunk + begin, packed);
    return out;
}
