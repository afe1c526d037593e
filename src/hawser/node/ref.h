#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "hawser/node/node.h"

namespace hawser {

// How a method of a value behind a reference is to be called.
struct UseOptions {
  std::optional<Duration> timeout{};  // as in CallOptions
};

// A reference to a value that lives on some node, its owner. The value stays there while any
// reference to it exists, anywhere; it need not be of a type that can be sent.
//
//   hawser::Ref<Model> model = node.remote<Model>("worker", "make_model", config);
//   at::Tensor y = model.call<at::Tensor>("forward", x).get();   // sent at once, runs on "worker"
//   node.call<void>("evaluator", "evaluate", model);             // references travel like values
//
// It can be used as soon as it exists: calls wait at the owner until the value does. If the
// function that should make the value fails, whoever uses the reference gets its error.
//
// Cheap to copy: copies share one title. Thread-safe.
template <class T>
class Ref {
 public:
  Ref() = default;
  explicit Ref(std::shared_ptr<RefHandle> handle) : handle_(std::move(handle)) {}

  bool valid() const { return handle_ != nullptr; }
  const std::string& owner() const { return handle_->owner(); }
  bool is_owner() const { return handle_->is_owner(); }
  bool confirmed() const { return handle_->confirmed(); }
  std::string id() const { return refs::to_string(handle_->id()); }

  // A copy of the value.
  Future<T> fetch(std::optional<Duration> timeout = std::nullopt) const requires Travels<T> {
    Node& node = its_node();
    return node.send<T>({.to = owner(), .timeout = timeout}, on_it("", {}));
  }
  // On its owner: whether the value exists already. Throws Error(Invalid) elsewhere.
  bool has_value() const { return its_node().has_value(*handle_); }
  // The value itself, on its owner; waits until it exists, no longer than the call being served.
  std::shared_ptr<T> local(Duration timeout = kForever) const {
    const Found found = its_node().find_local(*handle_, timeout);
    if (const auto kept = std::dynamic_pointer_cast<KeptValue<T>>(found.value)) {
      return kept->value();
    }
    throw Error(ErrorKind::Invalid,
                "the value is a " + found.value->type_name() + ", not a " + type_name<T>());
  }

  // Calls a method that the owner serves for the value's type (Node::serve_method), or has
  // (Python).
  template <class R = c10::IValue, class... Args>
  Future<R> call(std::string_view method, Args&&... args) const {
    return call<R>(UseOptions{}, method, std::forward<Args>(args)...);
  }
  template <class R = c10::IValue, class... Args>
  Future<R> call(const UseOptions& options, std::string_view method, Args&&... args) const {
    Node& node = its_node();
    return node.send<R>({.to = owner(), .timeout = options.timeout},
                        on_it(method, write_arguments(nullptr, std::forward<Args>(args)...)));
  }
  // The same; the result stays with the owner, too.
  template <class R = c10::IValue, class... Args>
  Ref<R> remote(std::string_view method, Args&&... args) const {
    return remote<R>(UseOptions{}, method, std::forward<Args>(args)...);
  }
  template <class R = c10::IValue, class... Args>
  Ref<R> remote(const UseOptions& options, std::string_view method, Args&&... args) const {
    return Ref<R>(its_node().create_written(
        {.to = owner(), .timeout = options.timeout},
        on_it(method, write_arguments(nullptr, std::forward<Args>(args)...)), type_name<R>()));
  }

  // Gives the reference up now instead of with the last copy of it.
  void release() { handle_->release(); }

  const std::shared_ptr<RefHandle>& handle() const { return handle_; }

 private:
  Node& its_node() const { return handle_->references().node(); }
  WrittenCall on_it(std::string_view method, wire::Payload&& payload) const {
    return {wire::TargetKind::Method, std::string(method), std::move(payload), handle_};
  }

  std::shared_ptr<RefHandle> handle_;
};

template <class T>
struct Codec<Ref<T>> {
  static std::string type_name() { return "Ref[" + hawser::type_name<T>() + "]"; }
  static void write(PayloadWriter& out, const Ref<T>& ref) {
    if (!ref.valid()) throw Error(ErrorKind::Invalid, "a reference to nothing cannot be sent");
    out.reference(ref.handle());
  }
  static Ref<T> read(PayloadReader& in) {
    return Ref<T>(std::static_pointer_cast<RefHandle>(in.reference()));
  }
};

template <class R, class... Args>
Ref<R> Node::remote(const CallOptions& options, std::string_view function, Args&&... args) {
  const std::int64_t called_ns = trace::stamp();
  WrittenCall written = write_call<R>(function, std::forward<Args>(args)...);
  written.called_ns = called_ns;
  return Ref<R>(create_written(options, std::move(written), type_name<R>()));
}

template <class R, class... Args>
Ref<R> Node::remote_script(const CallOptions& options, std::string_view function, Args&&... args) {
  return Ref<R>(create_written(
      options, write_script_call(function, {c10::IValue(std::forward<Args>(args))...}),
      type_name<R>()));
}

template <class T>
Ref<typename Pointee<std::decay_t<T>>::Type> Node::ref(T&& value) {
  return Ref<typename Pointee<std::decay_t<T>>::Type>(keep(make_kept(std::forward<T>(value))));
}

}  // namespace hawser
