// Causal attention with rotary places, and its gradients, for heads 32 wide, on processors that multiply
// tiles (Intel AMX).
//
// A tile is 16 rows of 64 bytes: 16 tokens of a head in half precision, or 16 x 16 scores in float32. So the
// scores of 16 queries and 16 keys are a few instructions, and a head of some hundred tokens stays in the
// cache. The softmax of a query is computed on its whole row; the backward pass computes it again from the
// logarithm of its sum, as FlashAttention-2 does (Dao 2023, https://arxiv.org/abs/2307.08691).

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

constexpr int64_t kWidth = 32;  // of a head
constexpr int64_t kTile = 16;   // rows of a tile, and columns of one in float32
constexpr int64_t kBlock = 32;  // tokens that a product is summed over at a time

using Half = uint16_t;  // bfloat16, as bits
using Halves = std::vector<Half>;

constexpr int64_t kHalfRow = kWidth * sizeof(Half);   // bytes of a row of halves in a tile
constexpr int64_t kFloatRow = kTile * sizeof(float);  // and of one of floats

inline int64_t padded(int64_t tokens) { return (tokens + kBlock - 1) / kBlock * kBlock; }

// ---- tiles ------------------------------------------------------------------------------------------------

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes_per_row[16] = {};
  uint8_t rows[16] = {};
};

// All eight tiles are 16 rows of 64 bytes while this lives. What another library had set comes back after it.
class Tiles {
 public:
  Tiles() {
    _tile_storeconfig(&before_);
    TileConfig ours;
    for (int tile = 0; tile < 8; ++tile) {
      ours.bytes_per_row[tile] = kHalfRow;
      ours.rows[tile] = kTile;
    }
    _tile_loadconfig(&ours);
  }
  ~Tiles() {
    if (before_.palette == 0) {
      _tile_release();
    } else {
      _tile_loadconfig(&before_);
    }
  }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

 private:
  TileConfig before_;
};

// ---- numbers ----------------------------------------------------------------------------------------------

inline __m512i counted() { return _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0); }

inline __m512i halves_of(__m512 low, __m512 high) {  // 32 of them, those of ``low`` first
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

inline __m512i widened(const Half* halves) {  // 16 of them, each in the lower half of its place
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves)));
}

inline __m512i interleaved(const Half* even, const Half* odd) {  // 16 of each
  return _mm512_or_si512(widened(even), _mm512_slli_epi32(widened(odd), 16));
}

struct Floats {  // 32 of them
  __m512 low, high;

  static Floats of(__m512i halves) {
    const __m256i low = _mm512_castsi512_si256(halves), high = _mm512_extracti64x4_epi64(halves, 1);
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(low), 16)),
            _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16))};
  }
  static Floats at(const float* floats) { return {_mm512_loadu_ps(floats), _mm512_loadu_ps(floats + kTile)}; }

  Floats times(__m512 factor) const { return {_mm512_mul_ps(low, factor), _mm512_mul_ps(high, factor)}; }
  __m512i halves() const { return halves_of(low, high); }
};

// exp of what is at most 0; 1e-38 for anything below -87. The relative error is under 1e-6.
inline __m512 exp_of(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(-87.0f));
  const __m512 power = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 8);
  __m512 rest = _mm512_fnmadd_ps(power, _mm512_set1_ps(0.693359375f), x);
  rest = _mm512_fnmadd_ps(power, _mm512_set1_ps(-2.12194440e-4f), rest);
  __m512 sum = _mm512_set1_ps(1.0f / 720);
  for (const float factor : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) {
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(factor));
  }
  return _mm512_scalef_ps(sum, power);
}

// ---- how a head lies in memory ----------------------------------------------------------------------------

// Of a head whose tokens lie ``stride`` halves apart, since heads lie side by side.
template <typename Element>
struct Rows {
  Element* first;
  int64_t stride;

  Element* operator[](int64_t token) const { return first + token * stride; }
};

// Row after row, with zeros after the last token: the left of a product that is summed over the width.
Halves copied(Rows<const Half> rows, int64_t tokens) {
  Halves made(padded(tokens) * kWidth);
  for (int64_t token = 0; token < tokens; ++token) {
    _mm512_storeu_si512(made.data() + token * kWidth, _mm512_loadu_si512(rows[token]));
  }
  return made;
}

// The right of a product that is summed over the width: of each 16 tokens a tile, whose row p is the pairs of
// halves at 2p of all of them.
Halves across(const Halves& rows) {
  Halves made(rows.size());
  const __m512i steps = _mm512_slli_epi32(counted(), 4);
  for (size_t tile = 0; tile < rows.size(); tile += kTile * kWidth) {
    for (int64_t pair = 0; pair < kTile; ++pair) {
      const __m512i gathered = _mm512_i32gather_epi32(steps, rows.data() + tile + 2 * pair, 4);
      _mm512_storeu_si512(made.data() + tile + pair * kWidth, gathered);
    }
  }
  return made;
}

// The right of a product that is summed over tokens: of each 32 of them two tiles, one for each half of the
// width, whose row p is the tokens 2p and 2p + 1, interleaved.
Halves along(const Halves& rows) {
  Halves made(rows.size());
  for (size_t block = 0; block < rows.size(); block += kBlock * kWidth) {
    for (int64_t pair = 0; pair < kTile; ++pair) {
      const Half* even = rows.data() + block + 2 * pair * kWidth;
      Half* to = made.data() + block + pair * kWidth;
      _mm512_storeu_si512(to, interleaved(even, even + kWidth));
      _mm512_storeu_si512(to + kTile * kWidth, interleaved(even + kTile, even + kWidth + kTile));
    }
  }
  return made;
}

// The left of a product that is summed over tokens, from what lies ``across``: of each 32 tokens two tiles,
// whose rows are the places of the width.
Halves transposed(const Halves& across) {
  Halves made(across.size());
  for (size_t block = 0; block < across.size(); block += kBlock * kWidth) {
    for (int64_t pair = 0; pair < kTile; ++pair) {
      const Half* from = across.data() + block + pair * kWidth;
      auto* to = reinterpret_cast<__m256i*>(made.data() + block + 2 * pair * kBlock);
      const __m512i first = _mm512_loadu_si512(from), last = _mm512_loadu_si512(from + kTile * kWidth);
      _mm256_storeu_si256(to, _mm512_cvtepi32_epi16(first));
      _mm256_storeu_si256(to + 1, _mm512_cvtepi32_epi16(last));
      _mm256_storeu_si256(to + 2, _mm512_cvtepi32_epi16(_mm512_srli_epi32(first, 16)));
      _mm256_storeu_si256(to + 3, _mm512_cvtepi32_epi16(_mm512_srli_epi32(last, 16)));
    }
  }
  return made;
}

// Cosines and sines of the angles by which the two halves of a width turn, of shape (tokens, 16)
// (Su et al. 2021, https://arxiv.org/abs/2104.09864).
struct Angles {
  const float *cosines, *sines;

  Floats turn(Floats row, int64_t token, float way) const {  // on with 1, back with -1
    const __m512 cosine = _mm512_loadu_ps(cosines + token * kTile);
    const __m512 sine = _mm512_mul_ps(_mm512_loadu_ps(sines + token * kTile), _mm512_set1_ps(way));
    return {_mm512_fmsub_ps(row.low, cosine, _mm512_mul_ps(row.high, sine)),
            _mm512_fmadd_ps(row.high, cosine, _mm512_mul_ps(row.low, sine))};
  }
};

// Turned rows times a factor as sums of two halves, a large and a small one: the products of such sums,
// without that of the two small parts, are as good as float32.
struct Split {
  Halves large, small;

  Split(Rows<const Half> rows, int64_t tokens, Angles angles, float factor)
      : large(padded(tokens) * kWidth), small(padded(tokens) * kWidth) {
    for (int64_t token = 0; token < tokens; ++token) {
      const Floats row = Floats::of(_mm512_loadu_si512(rows[token]));
      const Floats turned = angles.turn(row, token, 1.0f).times(_mm512_set1_ps(factor));
      const __m512i rounded = turned.halves();
      const Floats kept = Floats::of(rounded);
      _mm512_storeu_si512(large.data() + token * kWidth, rounded);
      _mm512_storeu_si512(small.data() + token * kWidth, halves_of(_mm512_sub_ps(turned.low, kept.low),
                                                                   _mm512_sub_ps(turned.high, kept.high)));
    }
  }
};

// Scores of 16 rows and 16 columns, which lie ``across``, from both parts of both.
inline void score(const Half* large_rows, const Half* small_rows, const Half* large_columns,
                  const Half* small_columns, float* scores, int64_t bytes_per_row) {
  _tile_zero(0);
  _tile_loadd(1, large_rows, kHalfRow);
  _tile_loadd(2, small_rows, kHalfRow);
  _tile_loadd(3, large_columns, kHalfRow);
  _tile_loadd(4, small_columns, kHalfRow);
  _tile_dpbf16ps(0, 1, 3);
  _tile_dpbf16ps(0, 1, 4);
  _tile_dpbf16ps(0, 2, 3);
  _tile_stored(0, scores, bytes_per_row);
}

// ---- forward ----------------------------------------------------------------------------------------------

struct Sum {
  float value, logarithm;
};

// Make shares of the scores of a query, of which the last 16 are those from ``last`` on, and it sees ``seen``
// of these. The shares are not yet divided by their sum, which is given together with its logarithm.
Sum shares_of(const float* scores, int64_t last, __mmask16 seen, Half* shares) {
  __m512 most = _mm512_mask_loadu_ps(_mm512_set1_ps(-1e30f), seen, scores + last);
  for (int64_t at = 0; at < last; at += kTile) {
    most = _mm512_max_ps(most, _mm512_loadu_ps(scores + at));
  }
  const float highest = _mm512_reduce_max_ps(most);
  const __m512 top = _mm512_set1_ps(highest);
  __m512 sum = _mm512_setzero_ps();
  for (int64_t block = 0; block <= last; block += kBlock) {
    __m512 parts[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int64_t at = block; at <= std::min(last, block + kTile); at += kTile) {
      const __m512 share = exp_of(_mm512_sub_ps(_mm512_loadu_ps(scores + at), top));
      parts[at > block] = at < last ? share : _mm512_maskz_mov_ps(seen, share);
      sum = _mm512_add_ps(sum, parts[at > block]);
    }
    _mm512_storeu_si512(shares + block, halves_of(parts[0], parts[1]));
  }
  const float value = _mm512_reduce_add_ps(sum);
  return {value, highest + std::log(value)};
}

void attend_head(Rows<const Half> query, Rows<const Half> key, Rows<const Half> value, int64_t tokens,
                 Angles angles, float scale, Rows<Half> got, float* log_sums) {
  const int64_t width = padded(tokens);
  const Split queries(query, tokens, angles, scale), keys(key, tokens, angles, 1.0f);
  const Halves large_keys = across(keys.large), small_keys = across(keys.small);
  const Halves values = along(copied(value, tokens));
  std::vector<float> scores(kTile * width);
  Halves shares(kTile * width);
  alignas(64) float rows[kTile * kWidth];
  for (int64_t first = 0; first < tokens; first += kTile) {
    const int64_t count = std::min(kTile, tokens - first), place = first * kWidth;
    for (int64_t at = 0; at <= first; at += kTile) {
      score(queries.large.data() + place, queries.small.data() + place, large_keys.data() + at * kWidth,
            small_keys.data() + at * kWidth, scores.data() + at, width * sizeof(float));
    }
    float sums[kTile];
    for (int64_t row = 0; row < count; ++row) {
      const auto seen = static_cast<__mmask16>((2u << row) - 1);
      const Sum sum = shares_of(scores.data() + row * width, first, seen, shares.data() + row * width);
      sums[row] = sum.value;
      log_sums[first + row] = sum.logarithm;
    }
    _tile_zero(0);
    _tile_zero(1);
    for (int64_t at = 0; at <= first; at += kBlock) {
      _tile_loadd(2, shares.data() + at, width * sizeof(Half));
      _tile_loadd(3, values.data() + at * kWidth, kHalfRow);
      _tile_loadd(4, values.data() + (at + kTile) * kWidth, kHalfRow);
      _tile_dpbf16ps(0, 2, 3);
      _tile_dpbf16ps(1, 2, 4);
    }
    _tile_stored(0, rows, kWidth * sizeof(float));
    _tile_stored(1, rows + kTile, kWidth * sizeof(float));
    for (int64_t row = 0; row < count; ++row) {
      const Floats summed = Floats::at(rows + row * kWidth);
      _mm512_storeu_si512(got[first + row], summed.times(_mm512_set1_ps(1.0f / sums[row])).halves());
    }
  }
}

// ---- backward ---------------------------------------------------------------------------------------------

// Add to four tiles in memory, two by two, the products of two tiles on the left with two on the right, which
// lie one after the other.
inline void add_products(const Half* left, const Half* right, float* sums, int64_t sums_width) {
  float* below = sums + kTile * sums_width;
  const int64_t bytes = sums_width * sizeof(float);
  _tile_loadd(0, sums, bytes);
  _tile_loadd(1, sums + kTile, bytes);
  _tile_loadd(2, below, bytes);
  _tile_loadd(3, below + kTile, bytes);
  _tile_loadd(4, left, kHalfRow);
  _tile_loadd(5, left + kTile * kBlock, kHalfRow);
  _tile_loadd(6, right, kHalfRow);
  _tile_loadd(7, right + kTile * kBlock, kHalfRow);
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
  _tile_stored(0, sums, bytes);
  _tile_stored(1, sums + kTile, bytes);
  _tile_stored(2, below, bytes);
  _tile_stored(3, below + kTile, bytes);
}

void head_gradients(Rows<const Half> of_got, Rows<const Half> got, Rows<const Half> query,
                    Rows<const Half> key, Rows<const Half> value, const float* log_sums, int64_t tokens,
                    Angles angles, float scale, Rows<Half> of_query, Rows<Half> of_key, Rows<Half> of_value) {
  const int64_t width = padded(tokens);
  const Split queries(query, tokens, angles, scale), keys(key, tokens, angles, 1.0f);
  const Halves large_queries = across(queries.large), small_queries = across(queries.small);
  const Halves queries_along = along(queries.large), keys_transposed = transposed(across(keys.large));
  const Halves values = copied(value, tokens), outer = copied(of_got, tokens);
  const Halves outer_across = across(outer), outer_along = along(outer);
  std::vector<float> sums(width, 1e30f), means(width);  // beyond the last token, shares are next to nothing
  for (int64_t token = 0; token < tokens; ++token) {
    const Floats a = Floats::of(_mm512_loadu_si512(of_got[token])),
                 b = Floats::of(_mm512_loadu_si512(got[token]));
    means[token] = _mm512_reduce_add_ps(_mm512_fmadd_ps(a.low, b.low, _mm512_mul_ps(a.high, b.high)));
    sums[token] = log_sums[token];
  }
  std::vector<float> of_queries(kWidth * width);  // transposed
  alignas(64) float of_keys[kBlock * kWidth], of_values[kBlock * kWidth];
  alignas(64) float scores[kTile * kTile], slopes[kTile * kTile];
  alignas(64) Half shares[kBlock * kBlock], of_scores[kBlock * kBlock], of_scores_along[kBlock * kBlock];
  for (int64_t from = 0; from < tokens; from += kBlock) {  // 32 keys, and from here on all queries
    std::memset(of_keys, 0, sizeof(of_keys));
    std::memset(of_values, 0, sizeof(of_values));
    for (int64_t at = from; at < tokens; at += kBlock) {
      for (int64_t below = 0; below < kBlock; below += kTile) {
        const int64_t key_tile = (from + below) * kWidth;
        __m512 share[2][kTile], slope[2][kTile];
        for (int64_t beside = 0; beside < kBlock; beside += kTile) {
          const int64_t place = at + beside, query_tile = place * kWidth;
          score(keys.large.data() + key_tile, keys.small.data() + key_tile, large_queries.data() + query_tile,
                small_queries.data() + query_tile, scores, kFloatRow);
          _tile_zero(5);
          _tile_loadd(6, values.data() + key_tile, kHalfRow);
          _tile_loadd(7, outer_across.data() + query_tile, kHalfRow);
          _tile_dpbf16ps(5, 6, 7);
          _tile_stored(5, slopes, kFloatRow);
          const __m512 sum = _mm512_loadu_ps(sums.data() + place),
                       mean = _mm512_loadu_ps(means.data() + place);
          for (int64_t row = 0; row < kTile; ++row) {
            const int64_t ahead = from + below + row - place;  // so many of these queries do not see the key
            const auto sees = static_cast<__mmask16>(0xffffu << std::clamp<int64_t>(ahead, 0, kTile));
            const __m512 over = _mm512_sub_ps(_mm512_load_ps(scores + row * kTile), sum);
            const __m512 drawn = exp_of(_mm512_min_ps(over, _mm512_setzero_ps()));
            const __m512 steep = _mm512_sub_ps(_mm512_load_ps(slopes + row * kTile), mean);
            share[beside / kTile][row] = _mm512_maskz_mov_ps(sees, drawn);
            slope[beside / kTile][row] = _mm512_mul_ps(share[beside / kTile][row], steep);
          }
        }
        for (int64_t row = 0; row < kTile; ++row) {
          const int64_t line = (below + row) * kBlock;
          _mm512_store_si512(shares + line, halves_of(share[0][row], share[1][row]));
          _mm512_store_si512(of_scores + line, halves_of(slope[0][row], slope[1][row]));
        }
      }
      for (int64_t pair = 0; pair < kTile; ++pair) {
        const Half* even = of_scores + 2 * pair * kBlock;
        Half* to = of_scores_along + pair * kBlock;
        _mm512_store_si512(to, interleaved(even, even + kBlock));
        _mm512_store_si512(to + kTile * kBlock, interleaved(even + kTile, even + kBlock + kTile));
      }
      add_products(shares, outer_along.data() + at * kWidth, of_values, kWidth);
      add_products(of_scores, queries_along.data() + at * kWidth, of_keys, kWidth);
      add_products(keys_transposed.data() + from * kWidth, of_scores_along, of_queries.data() + at, width);
    }
    for (int64_t row = 0; row < std::min(kBlock, tokens - from); ++row) {
      const Floats turned = Floats::at(of_keys + row * kWidth);
      _mm512_storeu_si512(of_key[from + row], angles.turn(turned, from + row, -1.0f).halves());
      _mm512_storeu_si512(of_value[from + row], Floats::at(of_values + row * kWidth).halves());
    }
  }
  const __m512i steps = _mm512_mullo_epi32(counted(), _mm512_set1_epi32(width));
  for (int64_t token = 0; token < tokens; ++token) {
    const float* column = of_queries.data() + token;
    const Floats turned = {_mm512_i32gather_ps(steps, column, 4),
                           _mm512_i32gather_ps(steps, column + kTile * width, 4)};
    _mm512_storeu_si512(of_query[token],
                        angles.turn(turned, token, -1.0f).times(_mm512_set1_ps(scale)).halves());
  }
}

}  // namespace

// ---- what is called from outside --------------------------------------------------------------------------

extern "C" {

// Queries, keys, values, what they get and all gradients are of shape (texts, tokens, heads, 32), log_sums of
// shape (texts, heads, tokens), cosines and sines of shape (tokens, 16).

void attend(const Half* query, const Half* key, const Half* value, const float* cosines, const float* sines,
            int64_t texts, int64_t tokens, int64_t heads, float scale, Half* got, float* log_sums) {
  const int64_t stride = heads * kWidth;
#pragma omp parallel for schedule(static)
  for (int64_t each = 0; each < texts * heads; ++each) {
    const Tiles tiles;
    const int64_t at = each / heads * tokens * stride + each % heads * kWidth;
    attend_head({query + at, stride}, {key + at, stride}, {value + at, stride}, tokens, {cosines, sines},
                scale, {got + at, stride}, log_sums + each * tokens);
  }
}

void attention_gradients(const Half* of_got, const Half* got, const Half* query, const Half* key,
                         const Half* value, const float* log_sums, const float* cosines, const float* sines,
                         int64_t texts, int64_t tokens, int64_t heads, float scale, Half* of_query,
                         Half* of_key, Half* of_value) {
  const int64_t stride = heads * kWidth;
#pragma omp parallel for schedule(static)
  for (int64_t each = 0; each < texts * heads; ++each) {
    const Tiles tiles;
    const int64_t at = each / heads * tokens * stride + each % heads * kWidth;
    head_gradients({of_got + at, stride}, {got + at, stride}, {query + at, stride}, {key + at, stride},
                   {value + at, stride}, log_sums + each * tokens, tokens, {cosines, sines}, scale,
                   {of_query + at, stride}, {of_key + at, stride}, {of_value + at, stride});
  }
}

}  // extern "C"
