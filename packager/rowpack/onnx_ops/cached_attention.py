"""Softmax attention of S new rows over the cached rows and themselves, grouped key/value heads.

    out_t = Σ_i softmax_i(q_t · k_i / √head_dim + mask_ti) v_i

q ``[S, heads · head_dim]``, k and v ``[S, kv]``, cache_k and cache_v ``[P, kv]`` in the work dtype,
kv = key_value_heads · head_dim, mask float32 ``[S, P + S]`` additive. Scores, softmax and the sum are float32;
out is float32 ``[S, heads · head_dim]``. Attribute ``head_dim``.
"""

NAME = "CachedAttention"

DEFINITION = """
<domain: "rowpack", opset_import: ["" : 20]>
CachedAttention <head_dim> (q, k, v, cache_k, cache_v, mask) => (out)
{
    rows = Shape<start: int = 0, end: int = 1>(q)
    minus_one = Constant<value_ints: ints = [-1]>()
    dim_scalar = Constant<value_int: int = @head_dim>()
    dim = Reshape(dim_scalar, minus_one)
    kv_width = Shape<start: int = 1, end: int = 2>(k)
    kv_heads = Div(kv_width, dim)
    keys_cast = Concat<axis: int = 0>(cache_k, k)
    values_cast = Concat<axis: int = 0>(cache_v, v)
    keys_wide = Cast<to: int = 1>(keys_cast)
    values_wide = Cast<to: int = 1>(values_cast)
    q_wide = Cast<to: int = 1>(q)
    key_shape = Concat<axis: int = 0>(minus_one, kv_heads, dim)
    keys = Reshape(keys_wide, key_shape)
    values = Reshape(values_wide, key_shape)
    query_shape = Concat<axis: int = 0>(rows, kv_heads, minus_one, dim)
    queries = Reshape(q_wide, query_shape)
    products = Einsum<equation: string = "skgd,tkd->kgst">(queries, keys)
    dim_float = Cast<to: int = 1>(dim_scalar)
    root = Sqrt(dim_float)
    scaled = Div(products, root)
    masked = Add(scaled, mask)
    weights = Softmax<axis: int = -1>(masked)
    attended = Einsum<equation: string = "kgst,tkd->skgd">(weights, values)
    out_shape = Concat<axis: int = 0>(rows, minus_one)
    out = Reshape(attended, out_shape)
}
"""
