"""Build ONNX graphs with onnx-graphsurgeon: names, shared constants, external weights."""
