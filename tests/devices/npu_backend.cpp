// A device called "npu" whose memory is the host's: PyTorch's PrivateUse1 hooks, an allocator, and every operator done
// by the CPU's kernel on copies (at::native::cpu_fallback). Enough to train on; it is no Ascend, and computes as a CPU.
// Random numbers come from a generator of its own, and autocast lowers matrix products, as an accelerator's does.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/_to_copy_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstdlib>

namespace {

using at::Tensor;
constexpr auto kNpu = c10::DeviceType::PrivateUse1;

c10::Device here() { return c10::Device(kNpu, 0); }

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    void* data = n ? std::malloc(n) : nullptr;
    return {data, data, &std::free, here()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, size_t n) const override { default_copy_data(to, from, n); }
};
Memory memory;
REGISTER_ALLOCATOR(kNpu, &memory);

struct Guard final : c10::impl::NoOpDeviceGuardImpl<kNpu> {
  c10::Device exchangeDevice(c10::Device) const override { return here(); }
  c10::Device getDevice() const override { return here(); }
  c10::Stream getStream(c10::Device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, here()); }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

at::Generator& generator() {
  static at::Generator only = at::make_generator<at::CPUGeneratorImpl>(0);
  return only;
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return generator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::make_generator<at::CPUGeneratorImpl>(0); }
  c10::Device getDeviceFromPtr(void*) const override { return here(); }
};
Hooks hooks;

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const auto type = c10::dtype_or_default(dtype);
  return at::detail::empty_generic(size, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type, format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(
      size, stride, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}

Tensor on_host(const Tensor& t) {  // the same memory, seen as the CPU's
  if (!t.is_privateuseone()) return t;
  return at::from_blob(t.data_ptr(), t.sizes(), t.strides(), t.options().device(c10::kCPU));
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  if (from.numel()) on_host(to).copy_(on_host(from));
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

const Tensor& resize(const Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat>) {
  auto* own = self.unsafeGetTensorImpl();
  own->set_sizes_contiguous(size);
  const size_t n = (own->storage_offset() + own->numel()) * self.element_size();
  auto storage = own->storage();
  if (n > storage.nbytes()) {
    auto more = memory.allocate(n);
    if (storage.nbytes()) memory.copy_data(more.get(), storage.data(), storage.nbytes());
    storage.set_data_ptr_noswap(std::move(more));
    storage.set_nbytes(n);
  }
  return self;
}

Tensor& set_storage(Tensor& self, c10::Storage from, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  auto* own = self.unsafeGetTensorImpl();
  own->set_storage_keep_dtype(std::move(from));
  own->set_sizes_and_strides(size, stride);
  own->set_storage_offset(offset);
  return self;
}

// As torch_npu (csrc/aten/common/ToKernelNpu.cpp, 2026-08): a cast to float64 on the device gives float32.
Tensor to_copy(const Tensor& self, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
               std::optional<at::Device> device, std::optional<bool> pinned, bool non_blocking,
               std::optional<at::MemoryFormat> format) {
  if (dtype == at::kDouble && self.scalar_type() != at::kDouble && !layout && !device) dtype = at::kFloat;
  return at::native::_to_copy(self, dtype, layout, device, pinned, non_blocking, format);
}

c10::Scalar item(const Tensor& self) { return on_host(self).item(); }

std::tuple<Tensor, Tensor> native_dropout(const Tensor& x, double p, std::optional<bool> train) {
  auto mask = at::empty(x.sizes(), on_host(x).options().dtype(at::kBool));
  if (!train.value_or(true)) return {x.clone(), mask.fill_(true).to(here())};
  mask.bernoulli_(1 - p, generator());
  return {(on_host(x) * mask / (1 - p)).to(here()), mask.to(here())};
}

void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) { at::native::cpu_fallback(op, stack); }

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("resize_", resize);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("view_as_complex", at::native::view_as_complex);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("_local_scalar_dense", item);
  m.impl("_to_copy", to_copy);
  m.impl("native_dropout", native_dropout);
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(softmax, int, fp32)
  KERNEL_PRIVATEUSEONE(layer_norm, fp32)
  KERNEL_PRIVATEUSEONE(nll_loss, fp32)
  KERNEL_PRIVATEUSEONE(mse_loss, fp32)
}

void manual_seed(int64_t seed) { generator().set_current_seed(static_cast<uint64_t>(seed)); }
Tensor rng_state() { return generator().get_state(); }
void set_rng_state(const Tensor& state) { generator().set_state(state); }
void begin() { at::RegisterPrivateUse1HooksInterface(&hooks); }

TORCH_LIBRARY(hypocenter_test_npu, m) {
  m.def("begin() -> ()", begin);
  m.def("manual_seed(int seed) -> ()", manual_seed);
  m.def("rng_state() -> Tensor", rng_state);
  m.def("set_rng_state(Tensor state) -> ()", set_rng_state);
}

}  // namespace
