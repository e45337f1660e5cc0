"""RWKV-4's WKV with a running maximum, row by row (RWKV-4 paper, arXiv:2305.13048, appendix D).

With w = decay ≤ 0 and u = bonus, both ``[channels]``, and k, v ``[S, channels]``, all float32, a row gives

    out = (e^(m−q) num + e^(u+k−q) v) / (e^(m−q) den + e^(u+k−q)),   q = max(m, u + k)

and the state (num, den, m), each ``[1, channels]``, moves on with m ← max(m + w, k). The state means
num·e^m and den·e^m; ``den = 0`` means "nothing seen yet", whatever m says, so zeroed buffers start correctly.
Distances are taken to the rounded maximum before bonus or decay is added, so what rounding it lost stays in the sums.
"""

NAME = "Wkv4"

DEFINITION = """
<domain: "rowpack", opset_import: ["" : 20]>
Wkv4 (k, v, decay, bonus, num, den, max) => (out, present_num, present_den, present_max)
{
    zero = Constant<value_ints: ints = [0]>()
    one = Constant<value_ints: ints = [1]>()
    nothing = Constant<value_float: float = 0.0>()
    lowest = Constant<value_float: float = -1.0e38>()
    present_num, present_den, present_max, out_rows = Scan<num_scan_inputs: int = 2, body: graph = wkv_row
        (float[r, channels] a, float[r, channels] b, float[r, channels] m, float[channels] key, float[channels] value)
        => (float[r, channels] next_a, float[r, channels] next_b, float[r, channels] next_m, float[r, channels] out_row)
    {
        seen = Greater(b, nothing)
        past = Where(seen, m, lowest)
        with_bonus = Add(bonus, key)
        largest = Max(past, with_bonus)
        past_distance = Sub(past, largest)
        past_scale = Exp(past_distance)
        key_distance = Sub(key, largest)
        row_distance = Add(key_distance, bonus)
        row_scale = Exp(row_distance)
        past_num = Mul(past_scale, a)
        row_num = Mul(row_scale, value)
        numerator = Add(past_num, row_num)
        past_den = Mul(past_scale, b)
        denominator = Add(past_den, row_scale)
        out_row = Div(numerator, denominator)
        decayed = Add(past, decay)
        next_m = Max(decayed, key)
        past_to_next = Sub(past, next_m)
        kept_distance = Add(past_to_next, decay)
        kept_scale = Exp(kept_distance)
        new_distance = Sub(key, next_m)
        new_scale = Exp(new_distance)
        kept_num = Mul(kept_scale, a)
        new_num = Mul(new_scale, value)
        next_a = Add(kept_num, new_num)
        kept_den = Mul(kept_scale, b)
        next_b = Add(kept_den, new_scale)
    }>(num, den, max, k, v)
    out = Squeeze(out_rows, one)
}
"""
