/* The C interface of the native step: one pass of a target, a draft model or an EAGLE head over a
 * ragged batch, on CPUs.
 *
 * Every pointer that a struct carries stays owned by the caller and must outlive the object it was
 * given to. Functions that can fail return NULL or a negative number and write one sentence into
 * `error` (at least OP_ERROR_BYTES). Nothing here throws, aborts or prints. One model may run one
 * pass at a time; different models may share a pool, one pass at a time.
 *
 * The same token's result has the same bits whatever else is in the pass: any number of rows, any
 * mixture of sequences, any chunking, any number of threads, any tree around it. It differs
 * between instruction-set paths.
 */
#ifndef OUTPACE_NATIVE_H
#define OUTPACE_NATIVE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OP_API __attribute__((visibility("default")))
#define OP_ABI_VERSION 5
#define OP_ERROR_BYTES 256

/* Weight formats. The three packed ones are GGUF's: blocks of 32 along `in`. */
enum { OP_F32 = 0, OP_BF16 = 1, OP_Q4_0 = 2, OP_Q4_1 = 3, OP_Q8_0 = 4 };

/* What activations are rounded to before they meet packed weights: bfloat16; int16 or int8 with
 * one scale per row and block of 32. F32 weights always meet float32, BF16 weights bfloat16. */
enum { OP_ACT_BF16 = 0, OP_ACT_INT16 = 1, OP_ACT_INT8 = 2 };

enum { OP_NORM_RMS = 0, OP_NORM_LAYER = 1 };
enum { OP_BLOCK_PRE = 0, OP_BLOCK_SANDWICH = 1, OP_BLOCK_PARALLEL = 2 };
enum { OP_SILU = 0, OP_GELU = 1, OP_GELU_TANH = 2 };
enum { OP_KV_F32 = 0, OP_KV_BF16 = 1 };
enum { OP_EAGLE1 = 1, OP_EAGLE3 = 3 };

/* y = x W^T + bias. data: `op_packed_bytes` bytes from `op_pack`, 64-byte aligned; bias [out] or
 * NULL. */
typedef struct {
  int32_t format;
  int32_t out;
  int32_t in;
  int32_t reserved;
  const void *data;
  const float *bias;
} op_linear;

/* weight [n], any offset already added; bias [n] for layer norms, else NULL. */
typedef struct {
  const float *weight;
  const float *bias;
} op_norm;

/* qkv: query, key and value projections stacked along `out`. up: for a gated MLP gate and up,
 * their outputs interleaved in runs of 16 (16 of gate, 16 of up, ...; intermediate_size padded with
 * zero rows to a multiple of 16 in both), else up alone. Norms that the block lacks have NULL weights.
 * q_norm, k_norm: [head_dim] or NULL. rope: index given to op_set_rope, or -1. window: a token sees
 * itself and the window - 1 before it; 0: all. */
typedef struct {
  op_linear qkv, o, up, down;
  op_norm input_norm, post_attention_norm, pre_mlp_norm, post_mlp_norm;
  const float *q_norm, *k_norm;
  int32_t rope;
  int32_t window;
} op_layer;

/* What makes an EAGLE head of a model with one pre-norm layer. Its tokens are columns: each starts from
 * a row x [hidden_size] that the batch gives, and leaves a row that the next one starts from.
 *
 * OP_EAGLE3 (Li et al. 2503.01840): qkv reads input_norm(embedding) beside hidden_norm(x), 2 *
 * hidden_size inputs; the residual stream starts from x, or from hidden_norm(x) if
 * norm_before_residual. OP_EAGLE1 (2401.15077): fc [hidden_size, 2 * hidden_size] of embedding beside
 * x goes through an ordinary layer; input_norm and final_norm may have NULL weights there, and are then
 * left out. What a column leaves is the layer's output, or final_norm of it if norm_output.
 * Of OP_EAGLE3 fc [hidden_size, any] makes x of a target's features where drafts start from these.
 * draft_ids [num_logits]: the token that each logit is for. The config's head is [num_logits,
 * hidden_size]. What the kind lacks (fc, hidden_norm) is zero. */
typedef struct {
  int32_t kind; /* OP_EAGLE* */
  int32_t norm_before_residual;
  int32_t norm_output;
  int32_t reserved;
  op_linear fc;
  op_norm hidden_norm;
  const int32_t *draft_ids;
} op_eagle;

typedef struct {
  int32_t abi_version; /* OP_ABI_VERSION */
  int32_t vocab_size;
  int32_t num_logits; /* leading vocabulary rows that are real tokens */
  int32_t hidden_size;
  int32_t intermediate_size;
  int32_t num_layers;
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t norm;
  int32_t block;
  int32_t activation;
  int32_t gated_mlp;
  int32_t activations; /* OP_ACT_* */
  int32_t kv_type;
  int32_t num_ropes;
  float norm_eps;
  float attention_scale;
  float attention_softcap; /* c tanh(s / c); 0: none */
  float final_softcap;     /* 0: none */
  float embedding_scale;
  int32_t num_positions; /* rows of position_embedding */
  op_linear embedding; /* [vocab_size, hidden_size]; its rows are gathered from the packed panels */
  op_linear head;      /* the same as embedding where they are tied */
  op_norm final_norm;
  const float *position_embedding; /* [num_positions, hidden_size] or NULL */
  const op_layer *layers;          /* copied */
  const op_eagle *eagle;           /* copied; NULL: an ordinary decoder */
} op_config;

/* The new tokens of one sequence: slots start .. start + num_tokens - 1 of cache row `row`.
 * parents: NULL for a chain; else for each new token the index of its parent among them, -1 for
 * the last token before `start`; parents come first. A node sees everything before `start`, its
 * ancestors and itself; its position is one past its parent's. */
typedef struct {
  int32_t row;
  int32_t start;
  int32_t num_tokens;
  int32_t reserved;
  const int32_t *parents;
} op_segment;

/* One pass. token_ids [num_tokens], segments one after the other. logit_rows: indices into the
 * tokens. logits [num_logit_rows][num_logits] or NULL; best [num_logit_rows] argmax (lowest index among
 * equals; NaN is never the best, and 0 stands where all are NaN) or NULL. capture: ascending layers
 * whose output (0: the embedding, i: the i-th layer) goes to hidden[i], [num_tokens][hidden_size].
 * num_layers: run only the first that many (then logits are those of the early exit: final norm and
 * head of what that layer left); 0: all. Of an EAGLE head x, what columns start from, and outputs, what
 * they leave (or NULL), both [num_tokens][hidden_size]; it captures nothing. */
typedef struct {
  int32_t num_tokens;
  int32_t num_segments;
  int32_t num_logit_rows;
  int32_t num_capture;
  int32_t num_layers;
  int32_t reserved;
  const int32_t *token_ids;
  const op_segment *segments;
  const int32_t *logit_rows;
  float *logits;
  int32_t *best;
  const int32_t *capture;
  float *const *hidden;
  const float *x;
  float *outputs;
} op_batch;

typedef struct op_pool op_pool;
typedef struct op_model op_model;
typedef struct op_cache op_cache;

/* --- This machine ------------------------------------------------------------------------- */

/* Names of the instruction-set paths built in, best first, separated by commas:
 * "amx,avx512bf16,avx512,avx2,portable"; and those of them that this processor and system run. */
OP_API const char *op_paths_built(void);
OP_API const char *op_paths_usable(void);
OP_API int32_t op_abi_version(void);

/* --- Threads ------------------------------------------------------------------------------ */

/* The caller's thread is one of them. Waiting spins briefly, then parks. */
OP_API op_pool *op_pool_new(int32_t num_threads, char *error);
OP_API void op_pool_free(op_pool *pool);
/* Reads `num_bytes` of `buffer` once with all threads (but for a rest of less than 256 bytes a thread);
 * returns seconds. */
OP_API double op_pool_read(op_pool *pool, const void *buffer, size_t num_bytes);

/* --- Weights ------------------------------------------------------------------------------ */

/* The packed layout is the same for every path. */
OP_API int64_t op_packed_bytes(int32_t format, int32_t out, int32_t in, char *error);
/* source: row-major [out, in]; float32 for OP_F32; bfloat16 bits for OP_BF16; GGUF blocks
 * (18, 20 or 34 bytes for 32 weights) for the packed formats. */
OP_API int32_t op_pack(int32_t format, int32_t out, int32_t in, const void *source, void *packed,
                       char *error);
/* Row `row` of a packed matrix in float32, [in]. */
OP_API void op_unpack_row(const op_linear *linear, int32_t row, float *values);
/* y [rows, out] = x [rows, in] W^T + bias, rounded as in a model with these `activations`. */
OP_API int32_t op_linear_forward(op_pool *pool, const char *path, const op_linear *linear,
                                 int32_t activations, int32_t rows, const float *x, float *y,
                                 char *error);

/* --- Models ------------------------------------------------------------------------------- */

OP_API op_model *op_model_new(const op_config *config, op_pool *pool, const char *path, char *error);
OP_API void op_model_free(op_model *model);
/* cos, sin: [num_positions, half]; channels 2 * half and up do not turn; pairs are (i, i + half).
 * Tables may be replaced by longer ones between passes. */
OP_API int32_t op_set_rope(op_model *model, int32_t index, int32_t half, int32_t num_positions,
                           const float *cos, const float *sin, char *error);

/* Keys and values of `num_rows` sequences of up to `capacity` tokens (a multiple of 16), in memory
 * that is committed when first written. Needs the model only while this runs. */
OP_API op_cache *op_cache_new(const op_model *model, int32_t num_rows, int32_t capacity, char *error);
OP_API void op_cache_free(op_cache *cache);
OP_API int64_t op_cache_bytes(const op_model *model, int32_t num_rows, int32_t capacity);
/* Copy slots begin .. end - 1 of `source` to `target`, all layers. Like op_cache_keep, does nothing where
 * that is not all inside the cache. */
OP_API void op_cache_copy(op_cache *cache, int32_t source, int32_t target, int32_t begin, int32_t end);
/* Compact an accepted path: slot start + nodes[i] moves to slot start + i; nodes ascend. */
OP_API void op_cache_keep(op_cache *cache, int32_t row, int32_t start, const int32_t *nodes,
                          int32_t num_nodes);

OP_API int32_t op_forward(op_model *model, op_cache *cache, const op_batch *batch, char *error);
/* One layer (0-based) over x [num_tokens, hidden_size], in place; token_ids and logits unused. */
OP_API int32_t op_layer_forward(op_model *model, op_cache *cache, int32_t layer,
                                const op_batch *batch, float *x, char *error);

/* Greedy drafting in one call: for each of num_seqs sequences, feed pending_ids (num_pending[i] of
 * them, concatenated) from slot starts[i] of rows[i], then num_steps[i] - 1 tokens that it chose itself.
 * num_layers: as in op_batch; only these layers' keys and values are written.
 * drafted: [num_seqs][max_steps], max_steps the largest of num_steps (each at least 1). */
OP_API int32_t op_draft(op_model *model, op_cache *cache, int32_t num_seqs, const int32_t *rows,
                        const int32_t *starts, const int32_t *num_pending,
                        const int32_t *pending_ids, const int32_t *num_steps, int32_t num_layers,
                        int32_t *drafted, char *error);

/* What one sequence drafts: as in op_draft, and how its tokens are chosen. temperature: above 0, but for
 * OP_CHOOSE_BEST. */
enum { OP_CHOOSE_BEST = 0, OP_CHOOSE_DRAWN = 1, OP_CHOOSE_RACED = 2 };
typedef struct {
  int32_t row, start, num_pending, num_steps;
  int32_t choice; /* OP_CHOOSE_* */
  float temperature;
} op_chain;

/* The same with an EAGLE head. start_from holds what the pending columns start from, row by row as
 * pending_ids: x, or the features that the head's fc makes x of if has_features. A drafted token starts from
 * what the column before it left. Tokens are ids of the model's vocabulary, drafted [num_seqs][max_steps]:
 *
 * OP_CHOOSE_BEST    the argmax
 * OP_CHOOSE_DRAWN   q = softmax(logits / temperature) in float32, and the token is the first at which q
 *                   summed up in float64 exceeds the coin in [0, 1) times its total
 * OP_CHOOSE_RACED   the token t whose -log(1 - u(t)) / exp(logits(t) / temperature) is smallest, u(t) the
 *                   uniform that SplitMix64 started at the key gives at position t, of those tokens whose
 *                   weight is not below e^-12 of the greatest
 *
 * noise: [num_seqs][max_steps], the coin or key of each token (or NULL without any). q: [num_logits] for each
 * drawn token, one sequence after the other. ranking: what the tokens were chosen from, or NULL; needs
 * OP_CHOOSE_BEST of every sequence. Fails where logits that are not only compared are not finite. */
typedef union {
  double coin;
  uint64_t key;
} op_noise;
/* Of each draft token the `width` (1 .. num_logits) likeliest ones at its place, likeliest first, the lowest
 * index first among equals: it leads them itself. token_ids [num_seqs][max_steps][width]: ids of the model's
 * vocabulary. chances, of the same shape: softmax(logits). */
typedef struct {
  int32_t width;
  int32_t reserved;
  int32_t *token_ids;
  float *chances;
} op_ranking;
OP_API int32_t op_eagle_draft(op_model *model, op_cache *cache, int32_t num_seqs, const op_chain *chains,
                              const int32_t *pending_ids, const float *start_from, int32_t has_features,
                              const op_noise *noise, int32_t *drafted, float *q,
                              const op_ranking *ranking, char *error);

#ifdef __cplusplus
}
#endif
#endif
