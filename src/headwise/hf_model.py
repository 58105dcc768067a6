"""What the code in an exported folder imports: it stays here, whatever moves inside."""

from headwise.checkpoints.hf_model import HeadwiseConfig as HeadwiseConfig
from headwise.checkpoints.hf_model import HeadwiseForCausalLM as HeadwiseForCausalLM
from headwise.checkpoints.hf_model import HeadwiseModel as HeadwiseModel
from headwise.checkpoints.swap.saved import swapped_class as swapped_class
