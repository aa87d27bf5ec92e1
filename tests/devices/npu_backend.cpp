// A device called "npu" whose memory is the host's: PyTorch's PrivateUse1 hooks, an allocator, and every operator done
// by the CPU's kernel on copies (at::native::cpu_fallback). Enough to train on; it is no Ascend, and computes as a CPU.
// Random numbers come from a generator of its own, and autocast lowers matrix products, as an accelerator's does.
// Streams, syncs, memory and the switches for what may go wrong are in npu_runtime.h.
#include "npu_runtime.h"

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

namespace {

using at::Tensor;
using npu::device;
using npu::here;
constexpr auto kNpu = npu::kType;

npu::Memory memory;
REGISTER_ALLOCATOR(kNpu, &memory);

// No `override` on what torch 2.6 does not have.
struct Guard final : c10::impl::NoOpDeviceGuardImpl<kNpu> {
  static c10::Stream stream(int64_t id) { return c10::Stream(c10::Stream::UNSAFE, here(), id); }
  c10::Device exchangeDevice(c10::Device) const override { return here(); }
  c10::Device getDevice() const override { return here(); }
  c10::Stream getStream(c10::Device) const noexcept override { return stream(npu::current_stream); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool) const override { return getNewStream(d, 0); }
  c10::Stream getNewStream(c10::Device, int) const override {
    std::lock_guard<std::recursive_mutex> lock(device().mutex);
    device().streams.emplace_back();
    return stream(static_cast<int64_t>(device().streams.size()) - 1);
  }
  c10::Stream exchangeStream(c10::Stream to) const noexcept override {
    return stream(std::exchange(npu::current_stream, to.id()));
  }
  void record(void** event, const c10::Stream& at, const c10::DeviceIndex, const c10::EventFlag) const override {
    std::lock_guard<std::recursive_mutex> lock(device().mutex);
    if (*event == nullptr) *event = new npu::Event;
    *static_cast<npu::Event*>(*event) = {at.id(), device().streams[at.id()]};
  }
  void block(void* event, const c10::Stream& at) const override {
    std::lock_guard<std::recursive_mutex> lock(device().mutex);
    if (event != nullptr) npu::join(device().streams[at.id()], static_cast<npu::Event*>(event)->clock);
  }
  bool queryEvent(void* event) const override {
    auto* own = static_cast<npu::Event*>(event);
    return own == nullptr || device().is_ready(own->clock, own->stream);
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<npu::Event*>(event);
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) device().wait("synchronize", static_cast<npu::Event*>(event)->clock);
  }
  double elapsedTime(void*, void*, const c10::DeviceIndex) const override { return 1.0; }
  bool queryStream(const c10::Stream& at) const override { return device().is_ready(queued(at), at.id()); }
  void synchronizeStream(const c10::Stream& at) const override { device().wait("synchronize", queued(at)); }
  bool isStreamCapturing(const c10::Stream&) const { return device().is_capturing; }
  void synchronizeDevice(const c10::DeviceIndex) const {
    npu::Clock all;
    {
      std::lock_guard<std::recursive_mutex> lock(device().mutex);
      for (const auto& each : device().streams) npu::join(all, each);
    }
    device().wait("synchronize", all);
  }
  static npu::Clock queued(const c10::Stream& at) {
    std::lock_guard<std::recursive_mutex> lock(device().mutex);
    return device().streams[at.id()];
  }
};
const Guard guard;
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

// What a kernel reads or writes, for its stream.
void touch(const Tensor& t, bool is_write, const std::string& name) {
  if (npu::n_quiet || !t.defined() || !t.is_privateuseone() || !t.numel() || !t.has_storage()) return;
  const auto& memory = t.storage().data_ptr();
  if (memory.get_deleter() != &npu::free_block) return;
  int64_t last = 0;
  for (int64_t i = 0; i < t.dim(); ++i) last += (t.size(i) - 1) * t.stride(i);
  const size_t begin = t.storage_offset() * t.element_size();
  device().touch(static_cast<npu::Block*>(memory.get_context()), begin, begin + (last + 1) * t.element_size(), is_write, name);
}

void wait(const char* kind) { device().wait(kind, Guard::queued(Guard::stream(npu::current_stream))); }

// As CUDA's: a copy between host and device waits unless it is told not to; to memory that is not pinned, also then.
Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  if (!from.numel()) return to;
  device().launch();
  touch(from, false, "copy_");
  touch(to, true, "copy_");
  if (!to.is_privateuseone()) wait("to_host");
  if (!from.is_privateuseone() && !non_blocking) wait("from_host");
  on_host(to).copy_(on_host(from));
  if (to.is_privateuseone()) device().capture([from, to] { on_host(to).copy_(on_host(from)); });
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

c10::Scalar item(const Tensor& self) {
  device().launch();
  touch(self, false, "item");
  wait("item");
  return on_host(self).item();
}

// As CUDA's: the host goes on, and meets the error where it waits next, and ever after.
void assert_async_msg(const Tensor& self, std::string_view message) {
  const auto time = device().launch();
  std::lock_guard<std::recursive_mutex> lock(device().mutex);
  if (on_host(self).item().toBool() || !device().error.empty()) return;
  device().error = "device-side assert triggered: " + std::string(message);
  device().failed_stream = npu::current_stream, device().failed_time = time;
}
void assert_async(const Tensor& self) { assert_async_msg(self, "assertion failed"); }

std::tuple<Tensor, Tensor> native_dropout(const Tensor& x, double p, std::optional<bool> train) {
  device().launch();
  touch(x, false, "native_dropout");
  npu::Quiet quiet;
  auto mask = at::empty(x.sizes(), on_host(x).options().dtype(at::kBool));
  if (!train.value_or(true)) return {x.clone(), mask.fill_(true).to(here())};
  auto out = at::empty_like(x), kept = mask.to(here());
  const auto fill = [x, p, mask, out, kept] {
    mask.bernoulli_(1 - p, generator());
    on_host(kept).copy_(mask);
    on_host(out).copy_(on_host(x) * mask / (1 - p));
  };
  fill();
  npu::n_quiet -= 1;
  device().capture(fill);
  npu::n_quiet += 1;
  return {out, kept};
}

void each_tensor(const c10::IValue& value, bool is_write, const std::string& name) {
  if (value.isTensor()) touch(value.toTensor(), is_write, name);
  if (value.isTensorList())
    for (const auto& t : value.toTensorVector()) touch(t, is_write, name);
  if (value.isOptionalTensorList())
    for (const auto& t : value.toOptionalTensorVector()) if (t) touch(*t, is_write, name);
}

// Operators whose CUDA kernels ask the device for a size or an answer.
bool waits(const std::string& name) {
  for (const char* each : {"aten::equal", "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::bincount",
                           "aten::repeat_interleave"})
    if (name == each) return true;
  return false;
}

void write(const Tensor& to, const Tensor& from) {
  if (to.defined() && to.numel() && to.data_ptr() != from.data_ptr()) on_host(to).copy_(on_host(from));
}

void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto& name = schema.name();
  if (!npu::n_quiet) {
    device().launch();
    const auto first = stack->size() - schema.arguments().size();
    for (size_t i = 0; i < schema.arguments().size(); ++i) {
      const auto* alias = schema.arguments()[i].alias_info();
      each_tensor((*stack)[first + i], alias != nullptr && alias->isWrite(), name);
    }
    if (waits(name)) wait("answer");
  }
  const bool is_captured = device().is_capturing && !npu::n_quiet;
  torch::jit::Stack given;
  if (is_captured) given.assign(stack->end() - schema.arguments().size(), stack->end());
  {
    npu::Quiet quiet;
    at::native::cpu_fallback(op, stack);
  }
  const auto first = stack->size() - schema.returns().size();
  if (is_captured) {
    torch::jit::Stack made(stack->begin() + first, stack->end());
    device().capture([op, given, made] {
      npu::Quiet quiet;
      auto again = given;
      at::native::cpu_fallback(op, &again);
      for (size_t i = 0; i < made.size(); ++i) {
        if (made[i].isTensor()) write(made[i].toTensor(), again[i].toTensor());
        if (made[i].isTensorList())
          for (size_t k = 0; k < made[i].toTensorVector().size(); ++k)
            write(made[i].toTensorVector()[k], again[i].toTensorVector()[k]);
      }
    });
  }
  for (size_t i = 0; i < schema.returns().size(); ++i)
    if (schema.returns()[i].alias_info() == nullptr) each_tensor((*stack)[first + i], true, name);
}

void record_stream(Tensor&, c10::Stream) {}

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
  m.impl("_assert_async", assert_async);
  m.impl("_assert_async.msg", assert_async_msg);
  m.impl("record_stream", record_stream);
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
void not_while_capturing(const char* what) {
  TORCH_CHECK(!device().is_capturing, what, " is not permitted when stream is capturing");
}
Tensor rng_state() { return not_while_capturing("get_rng_state"), generator().get_state(); }
void set_rng_state(const Tensor& state) { not_while_capturing("set_rng_state"), generator().set_state(state); }
void begin() { at::RegisterPrivateUse1HooksInterface(&hooks); }

int64_t count(std::string_view kind) {
  for (const auto& each : device().counts)
    if (each.first == kind) return each.second;
  return 0;
}
std::vector<std::string> kinds() {
  std::vector<std::string> names;
  for (const auto& each : device().counts) names.push_back(each.first);
  return names;
}
std::vector<std::string> races() { return std::exchange(device().races, {}); }
void on_sync(int64_t call) { device().on_sync = reinterpret_cast<void (*)(const char*)>(call); }
void quiet(bool on) { npu::n_quiet += on ? 1 : -1; }
void capturing(bool on) { device().is_capturing = on; }
int64_t begin_graph() {
  device().graphs.emplace_back(), capturing(true);
  return static_cast<int64_t>(device().graphs.size()) - 1;
}
void replay_graph(int64_t graph) {
  device().launch();
  at::NoGradGuard no_grad;
  for (const auto& again : device().graphs[graph]) again();
}
void never_ready(bool on) { device().is_never_ready = on; }
void limit_memory(int64_t n_bytes) { device().limit = n_bytes; }
int64_t memory_used(bool at_most) { return at_most ? device().peak : device().used; }
void reset_peak() { device().peak = device().used; }
void synchronize() { guard.synchronizeDevice(0); }

TORCH_LIBRARY(hypocenter_test_npu, m) {
  m.def("begin() -> ()", begin);
  m.def("manual_seed(int seed) -> ()", manual_seed);
  m.def("rng_state() -> Tensor", rng_state);
  m.def("set_rng_state(Tensor state) -> ()", set_rng_state);
  m.def("count(str kind) -> int", count);
  m.def("kinds() -> str[]", kinds);
  m.def("races() -> str[]", races);
  m.def("on_sync(int call) -> ()", on_sync);
  m.def("quiet(bool on) -> ()", quiet);
  m.def("capturing(bool on) -> ()", capturing);
  m.def("begin_graph() -> int", begin_graph);
  m.def("replay_graph(int graph) -> ()", replay_graph);
  m.def("never_ready(bool on) -> ()", never_ready);
  m.def("limit_memory(int n_bytes) -> ()", limit_memory);
  m.def("memory_used(bool at_most) -> int", memory_used);
  m.def("reset_peak() -> ()", reset_peak);
  m.def("synchronize() -> ()", synchronize);
}

}  // namespace

// No operator: a mode that sees operators is to see none of this.
extern "C" bool hypocenter_test_npu_is_capturing() { return device().is_capturing; }
