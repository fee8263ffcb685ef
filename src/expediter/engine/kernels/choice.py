"""Which functions a model's steps use: compiled ones where there are any, else torch's."""

import ctypes
import logging
import sys
from dataclasses import dataclass

import torch

from expediter.engine.architecture import ModelConfig
from expediter.engine.batch import DecodeAttention
from expediter.engine.kernels import attention, region, vectors
from expediter.engine.linear import Int4Maker, Int4Product
from expediter.engine.operations import Operations, TorchOperations
from expediter.transfer.layout import KVLayout

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Without `attention`, decodes gather their blocks first."""

    operations: Operations
    make_int4: Int4Maker = Int4Product
    attention: DecodeAttention | None = None


def make_kernels(
    config: ModelConfig, layout: KVLayout, *, dtype: torch.dtype, device: torch.device
) -> Kernels:
    """The fastest that device, dtype and shapes allow."""
    plain = Kernels(operations=TorchOperations(config, dtype=dtype, device=device))
    shape = _attention_shape(config, layout)
    if not (processor_serves(dtype, device) and _shapes_serve(config, shape)):
        return plain
    try:
        return _compiled(config, shape, others=plain.operations)
    except ImportError:
        logger.info("llvmlite is not installed: decoding uses torch's operations alone")
    except RuntimeError as error:
        logger.warning("LLVM does not take our functions, torch's are used: %s", error)
    return plain


def _compiled(config: ModelConfig, shape: attention.Shape, *, others: Operations) -> Kernels:
    from expediter.engine.kernels.compiled import Library
    from expediter.engine.kernels.operations import CompiledOperations, operations_source
    from expediter.engine.kernels.paged import PagedAttention, attention_source
    from expediter.engine.kernels.products import Int4Products, products_source

    parts = [operations_source(config), attention_source(shape), products_source()]
    library = Library("\n".join([vectors.DECLARATIONS, region.DECLARATIONS, *parts]))
    return Kernels(
        operations=CompiledOperations(library, others=others),
        make_int4=Int4Products(library),
        attention=PagedAttention(library, shape),
    )


def _attention_shape(config: ModelConfig, layout: KVLayout) -> attention.Shape:
    return attention.Shape(
        num_layers=layout.num_layers,
        num_kv_heads=config.num_kv_heads,
        num_shared=config.num_queries_per_kv,
        head_size=config.head_size,
        block_size=layout.block_size,
    )


def processor_serves(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether it has the instructions, and torch an OpenMP that we can call."""
    if device.type != "cpu" or dtype != torch.bfloat16 or sys.platform != "linux":
        return False
    capabilities = torch.cpu.get_capabilities()
    process = ctypes.CDLL(None)
    return (
        capabilities.get("architecture") == "x86_64"
        and all(capabilities.get(name) for name in ("avx512_f", "avx512_bw", "avx512_bf16"))
        and all(hasattr(process, name) for name in region.OPENMP)
    )


def _shapes_serve(config: ModelConfig, shape: attention.Shape) -> bool:
    widths = (config.hidden_size, config.intermediate_size)
    return shape.is_served and not any(width % attention.TILE for width in widths)
