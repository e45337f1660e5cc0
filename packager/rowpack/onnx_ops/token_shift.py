"""RWKV's token shift: each row sees the row before it; the state is the last row of the previous call.

x ``[S, hidden]`` float32 (layer-normed), previous ``[1, hidden]``; shifted ``[S, hidden]``, present ``[1, hidden]``.
"""

NAME = "TokenShift"

DEFINITION = """
<domain: "rowpack", opset_import: ["" : 20]>
TokenShift (x, previous) => (shifted, present)
{
    zero = Constant<value_ints: ints = [0]>()
    minus_one = Constant<value_ints: ints = [-1]>()
    end = Constant<value_ints: ints = [9223372036854775807]>()
    joined = Concat<axis: int = 0>(previous, x)
    shifted = Slice(joined, zero, minus_one, zero)
    present = Slice(x, minus_one, end, zero)
}
"""
