"""The gated delta rule, row by row (Yang et al., "Gated Delta Networks", arXiv:2412.06464, eq. 10).

    S ← e^g S;   u = β (v − Sᵀk);   S ← S + k uᵀ;   o = Sᵀ q

per value head, S is ``[key_dim, value_dim]``. Inputs, all float32: q and k ``[S, key_heads · key_dim]`` (k and q
normalised, q scaled), v ``[S, value_heads · value_dim]``, decay g ≤ 0 and beta ``[S, value_heads]``, state
``[value_heads, key_dim, value_dim]``. Value head h uses key head h // (value_heads / key_heads).
Outputs: out ``[S, value_heads · value_dim]`` and the state after the last row.
"""

NAME = "GatedDeltaRule"

DEFINITION = """
<domain: "rowpack", opset_import: ["" : 20]>
GatedDeltaRule (q, k, v, decay, beta, state) => (out, present)
{
    rows = Shape<start: int = 0, end: int = 1>(q)
    key_width = Shape<start: int = 1, end: int = 2>(q)
    value_heads = Shape<start: int = 0, end: int = 1>(state)
    key_dim = Shape<start: int = 1, end: int = 2>(state)
    value_dim = Shape<start: int = 2, end: int = 3>(state)
    one = Constant<value_ints: ints = [1]>()
    minus_one = Constant<value_ints: ints = [-1]>()
    two = Constant<value_ints: ints = [2]>()
    last_two = Constant<value_ints: ints = [1, 2]>()
    key_heads = Div(key_width, key_dim)
    group = Div(value_heads, key_heads)
    grouped_shape = Concat<axis: int = 0>(rows, key_heads, one, key_dim)
    repeated_shape = Concat<axis: int = 0>(rows, key_heads, group, key_dim)
    key_shape = Concat<axis: int = 0>(rows, value_heads, key_dim)
    value_shape = Concat<axis: int = 0>(rows, value_heads, value_dim)
    q_grouped = Reshape(q, grouped_shape)
    q_repeated = Expand(q_grouped, repeated_shape)
    q_heads = Reshape(q_repeated, key_shape)
    k_grouped = Reshape(k, grouped_shape)
    k_repeated = Expand(k_grouped, repeated_shape)
    k_heads = Reshape(k_repeated, key_shape)
    v_heads = Reshape(v, value_shape)
    present, out_heads = Scan<num_scan_inputs: int = 5, body: graph = delta_rule_row
        (float[heads, kd, vd] memory, float[heads, kd] query, float[heads, kd] key, float[heads, vd] value,
         float[heads] log_decay, float[heads] strength)
        => (float[heads, kd, vd] next_memory, float[heads, vd] read)
    {
        factor = Exp(log_decay)
        factor_column = Unsqueeze(factor, last_two)
        decayed = Mul(memory, factor_column)
        key_row = Unsqueeze(key, one)
        recalled = MatMul(key_row, decayed)
        value_row = Unsqueeze(value, one)
        error = Sub(value_row, recalled)
        strength_column = Unsqueeze(strength, last_two)
        update = Mul(strength_column, error)
        key_column = Unsqueeze(key, two)
        written = Mul(key_column, update)
        next_memory = Add(decayed, written)
        query_row = Unsqueeze(query, one)
        read_row = MatMul(query_row, next_memory)
        read = Squeeze(read_row, one)
    }>(state, q_heads, k_heads, v_heads, decay, beta)
    out_shape = Concat<axis: int = 0>(rows, minus_one)
    out = Reshape(out_heads, out_shape)
}
"""
