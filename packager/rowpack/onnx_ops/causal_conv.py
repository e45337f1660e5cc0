"""Depthwise causal convolution over rows with a state of the last columns, then SiLU.

    out_t = silu(Σ_j weight[:, j] · x_{t-K+1+j}),  K = 4 columns in Qwen3.5

x is ``[S, channels]``, state ``[channels, K]`` (the last K inputs before the activation, oldest first, the current
one included), weight ``[channels, K]``, all float32. Source: Qwen3.5's ``causal_conv1d_update`` in transformers.
"""

NAME = "CausalConvState"

DEFINITION = """
<domain: "rowpack", opset_import: ["" : 20]>
CausalConvState (x, state, weight) => (out, present)
{
    one = Constant<value_ints: ints = [1]>()
    end = Constant<value_ints: ints = [9223372036854775807]>()
    present, out = Scan<num_scan_inputs: int = 1, body: graph = convolve_row
        (float[channels, columns] window, float[channels] row)
        => (float[channels, columns] next_window, float[channels] activated)
    {
        column = Unsqueeze(row, one)
        kept = Slice(window, one, end, one)
        next_window = Concat<axis: int = 1>(kept, column)
        weighted = Mul(next_window, weight)
        summed = ReduceSum<keepdims: int = 0>(weighted, one)
        gate = Sigmoid(summed)
        activated = Mul(summed, gate)
    }>(state, x)
}
"""
