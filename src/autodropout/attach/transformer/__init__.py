"""The sites of a Transformer and the ways to reach them.

find          sites, from the parts of a recorded forward
graph         one eval forward: tensors, functions, module calls
linears       linear layers in that graph
parts         attentions, residual sums and feed-forwards in it
sublayers     sites numbered by layer
heads         which channels of a projection are which head's
layouts       what a drop is shown: always (..., T, C)
hooks         drops on what a module takes and returns
skips         drops on the skip input of a sum
attention     attention written out, and nn.MultiheadAttention
torch_layers  nn.TransformerEncoderLayer and nn.TransformerDecoderLayer
interface     Hugging Face's attention interface
"""
