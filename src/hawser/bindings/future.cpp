#include "hawser/bindings/future.h"

#include <torch/csrc/jit/python/pybind_utils.h>

#include <mutex>

#include "hawser/bindings/imports.h"
#include "hawser/bindings/torch_bridge.h"
#include "hawser/script/host.h"

namespace py = pybind11;

namespace hawser::bindings {
namespace {

using TorchFuture = c10::ivalue::Future;
using torch::jit::PythonFutureWrapper;

// The answer of a call, read when the first one asks for it, and kept.
class Reading {
 public:
  explicit Reading(std::shared_ptr<PendingCall> call) : call_(std::move(call)) {}

  PendingCall& call() { return *call_; }
  const c10::TypePtr& declared() const { return call_->declared(); }

  // For scripts, where there is a type: needs no interpreter lock. Throws Error. Of an answer.
  const c10::IValue& script_value() {
    std::call_once(script_value_read_, [this] {
      try {
        script_value_ = call_->read_for_script();
      } catch (...) {
        unreadable_ = std::current_exception();
      }
    });
    if (unreadable_) std::rethrow_exception(unreadable_);
    return script_value_;
  }

  // Borrowed. Throws PythonErrorSet.
  PyObject* value() {
    if (call_->failed()) call_->read();  // throws: an exception of its own for each who asks
    if (!begun_.exchange(true)) {
      try {
        value_ = AnywhereObject(declared() ? converted() : call_->read());
      } catch (...) {
        keep_error();
      }
      done_.set();
    } else if (!done_.happened()) {  // reading runs Python, which lets other threads in
      wait_interruptibly(*call_->core().node().scheduler(), done_, Deadline::never());
    }
    if (error_) {
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error_.get())), error_.get());
      throw PythonErrorSet{};
    }
    return value_.get();
  }

 private:
  Object converted() {
    {
      const WithoutGil no_gil;  // another thread may be reading it
      script_value();
    }
    return python_of(call_->core(), script_value());
  }

  void keep_error() {
    set_python_error(&call_->core());
    error_ = AnywhereObject(take_raised());
  }

  const std::shared_ptr<PendingCall> call_;
  std::once_flag script_value_read_;
  c10::IValue script_value_;
  std::exception_ptr unreadable_;
  std::atomic<bool> begun_{false};
  Event done_;
  AnywhereObject value_;
  AnywhereObject error_;
};

// The value of a torch future that nobody has looked at yet: the thread that completes the future
// reads the network and must not need the interpreter lock (GIL-1).
struct LazyValue final : c10::ivalue::PyObjectHolder {
  explicit LazyValue(std::shared_ptr<Reading> reading) : reading_(std::move(reading)) {}

  PyObject* getPyObject() override {
    try {
      return reading_->value();
    } catch (const PythonErrorSet&) {
      throw py::error_already_set();
    }
  }
  c10::InferredType tryToInferType() override {
    const py::gil_scoped_acquire gil;
    return torch::jit::tryToInferType(py::reinterpret_borrow<py::object>(getPyObject()));
  }
  c10::IValue toIValue(const c10::TypePtr& type, std::optional<int32_t> count) override {
    const py::gil_scoped_acquire gil;
    return torch::jit::toIValue(py::reinterpret_borrow<py::object>(getPyObject()), type, count);
  }
  std::string toStr() override {
    const py::gil_scoped_acquire gil;
    return py::str(py::reinterpret_borrow<py::object>(getPyObject()));
  }
  std::vector<at::Tensor> extractTensors() override { return {}; }

  const std::shared_ptr<Reading> reading_;
};

// The error of such a future. Becomes the exception of the call where it reaches Python.
struct CallFailed : std::runtime_error {
  CallFailed(const std::string& message, std::shared_ptr<Reading> failed)
      : std::runtime_error(message), reading(std::move(failed)) {}
  std::shared_ptr<Reading> reading;
};

// Completes the torch future of a call. Where somebody has attached a callback, which may be any
// Python, that is done by a hand of the crew, else at once.
class Completion : public std::enable_shared_from_this<Completion> {
 public:
  Completion(std::shared_ptr<Reading> reading, c10::intrusive_ptr<TorchFuture> future)
      : reading_(std::move(reading)),
        future_(std::move(future)),
        runs_scripts_(reading_->declared() && has_named_type(*reading_->declared())) {}

  Reading& reading() { return *reading_; }

  void on_answer(agent::Answer&& answer) {
    error_ = answer.error;
    reading_->call().set_answer(std::move(answer));
    {
      // Under the lock, so that a callback is attached before or after, not meanwhile.
      auto watched = watched_.lock();
      const std::size_t own_users = watched->by_object ? 2 : 1;
      if (!runs_scripts_ && !watched->by_callback && future_.use_count() <= own_users) {
        return complete();
      }
    }
    reading_->call().core().node().scheduler()->post(
        [self = shared_from_this()] { self->complete(); });
  }

  void expect_callback() { watched_.lock()->by_callback = true; }
  void forget_object() { watched_.lock()->by_object = false; }

 private:
  void complete() {
    try {
      if (error_) {
        future_->setErrorIfNeeded(std::make_exception_ptr(CallFailed(error_->message(), reading_)));
      } else if (future_->completed()) {
        // By set_result(), which users may call.
      } else if (reading_->declared()) {
        future_->markCompleted(reading_->script_value(), std::vector<TorchFuture::WeakStorage>());
      } else {
        future_->markCompleted(c10::IValue(c10::intrusive_ptr<c10::ivalue::PyObjectHolder>(
                                   c10::make_intrusive<LazyValue>(reading_))),
                               std::vector<TorchFuture::WeakStorage>());
      }
    } catch (const std::exception&) {
      // Completed by somebody else a moment ago: then that counts. Or it could not be read.
      future_->setErrorIfNeeded(std::current_exception());
    }
  }

  struct Watched {
    bool by_callback = false;
    bool by_object = true;
  };
  const std::shared_ptr<Reading> reading_;
  const c10::intrusive_ptr<TorchFuture> future_;
  const bool runs_scripts_;  // when its value is read
  std::optional<Error> error_;
  Guarded<Watched> watched_;
};

template <class F>
auto through(F function) {
  try {
    return function();
  } catch (const PythonErrorSet&) {
    throw py::error_already_set();
  }
}

// A torch future whose wait() looks after the network.
class CallFuture : public PythonFutureWrapper {
 public:
  CallFuture(std::shared_ptr<Completion> completion, c10::intrusive_ptr<TorchFuture> future,
             UniqueFunction<void()> canceller, Object kept_alive)
      : PythonFutureWrapper(std::move(future)),
        completion_(std::move(completion)),
        canceller_(std::move(canceller)),
        kept_alive_(AnywhereObject(std::move(kept_alive))) {}
  ~CallFuture() { completion_->forget_object(); }

  bool is_done() { return call().answered().happened() || fut->completed(); }

  bool wait_for(double seconds) {
    constexpr double kMost = 1e9;  // seconds; beyond what a Duration could lose
    const std::chrono::duration<double> patience(std::clamp(seconds, 0.0, kMost));
    return through([&] { return call().wait(std::chrono::duration_cast<Duration>(patience)); });
  }

  py::object wait_for_value() {
    return through([&] {
      try {
        call().wait();
      } catch (const PythonErrorSet&) {  // an interrupt
        cancel();
        throw;
      }
      return py::reinterpret_borrow<py::object>(completion_->reading().value());
    });
  }

  py::object value_now() {
    if (!is_done()) throw std::runtime_error("the future is not done");
    return wait_for_value();
  }

  std::shared_ptr<PythonFutureWrapper> then_call(py::function callback) {
    completion_->expect_callback();
    return then(std::move(callback));
  }

  void when_done_call(py::function callback) {
    completion_->expect_callback();
    add_done_callback(std::move(callback));
  }

  void expect_callback() { completion_->expect_callback(); }

  void cancel() {
    const WithoutGil no_gil;
    if (canceller_) canceller_();
  }

 private:
  PendingCall& call() { return completion_->reading().call(); }

  const std::shared_ptr<Completion> completion_;
  UniqueFunction<void()> canceller_;
  AnywhereObject kept_alive_;  // what is being sent must not change hands before it has been
};

// torch loads futures by the holder of its own class. Nor could pybind11 come from shared_from_this
// of that class, which has no virtual function, to ours.
using Holder = std::shared_ptr<PythonFutureWrapper>;

}  // namespace
}  // namespace hawser::bindings

template <>
struct pybind11::detail::is_holder_type<hawser::bindings::CallFuture, hawser::bindings::Holder>
    : std::true_type {};

namespace hawser::bindings {
namespace {

PyObject* wrapped(std::shared_ptr<CallFuture> future) {
  CallFuture* const pointer = future.get();
  const Holder holder = std::move(future);
  return py::detail::type_caster_base<CallFuture>::cast_holder(pointer, &holder).ptr();
}

}  // namespace

MadeFuture make_future(const std::shared_ptr<NodeCore>& core) {
  auto torch_future = c10::make_intrusive<TorchFuture>(c10::PyObjectType::get());
  auto completion = std::make_shared<Completion>(
      std::make_shared<Reading>(std::make_shared<PendingCall>(core)), torch_future);
  auto settle = [completion](agent::Answer&& answer) { completion->on_answer(std::move(answer)); };
  return {Object::taken(wrapped(std::make_shared<CallFuture>(
              std::move(completion), std::move(torch_future), nullptr, Object()))),
          std::move(settle)};
}

Object start_call(const std::shared_ptr<NodeCore>& core, const CallOptions& options,
                  WrittenCall&& call, Object kept_alive) {
  const c10::TypePtr declared = call.returns;
  auto torch_future =
      c10::make_intrusive<TorchFuture>(declared ? declared : c10::PyObjectType::get());
  auto completion = std::make_shared<Completion>(
      std::make_shared<Reading>(std::make_shared<PendingCall>(core, declared)), torch_future);
  UniqueFunction<void()> canceller;
  {
    const WithoutGil no_gil;
    canceller = core->node().call_written(
        options, std::move(call),
        [completion](agent::Answer&& answer) { completion->on_answer(std::move(answer)); });
  }
  return Object::taken(
      wrapped(std::make_shared<CallFuture>(std::move(completion), std::move(torch_future),
                                           std::move(canceller), std::move(kept_alive))));
}

namespace {

void set_python_error(const script::CallError& failed) {
  PyObject* const exception =
      PyObject_CallFunction(imports().make_exception, "ss{}",
                            std::string(to_string(failed.error().kind())).c_str(), failed.what());
  if (!exception) return;  // and that is the error
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception)), exception);
  Py_DECREF(exception);
}

}  // namespace

bool is_torch_future(PyObject* object) { return py::isinstance<PythonFutureWrapper>(object); }

void when_torch_future_done(PyObject* future, std::function<void(PyObject*)> then) {
  if (py::isinstance<CallFuture>(future))
    py::cast<CallFuture&>(py::handle(future)).expect_callback();
  auto wrapper = py::cast<std::shared_ptr<PythonFutureWrapper>>(py::handle(future));
  auto torch_future = wrapper->fut;
  torch_future->addCallback([wrapper, then = std::move(then)](TorchFuture&) {
    const WithGil gil;
    py::object value;
    try {
      value = wrapper->value();
    } catch (...) {
      try {
        throw;
      } catch (const CallFailed& failed) {
        try {
          failed.reading->value();
        } catch (const PythonErrorSet&) {
        }
      } catch (...) {
        translate_current_exception();
      }
      return then(nullptr);
    }
    then(value.ptr());
  });
}

void bind_future(py::module_& module) {
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const CallFailed& failed) {
      try {
        failed.reading->value();
      } catch (const PythonErrorSet&) {
      }
    } catch (const script::CallError& failed) {  // of a future that a script has made
      set_python_error(failed);
    }
  });
  py::class_<CallFuture, PythonFutureWrapper, Holder>(module, "Future")
      .def("done", &CallFuture::is_done)
      .def("wait", &CallFuture::wait_for_value)
      .def("value", &CallFuture::value_now)
      .def("wait_for", &CallFuture::wait_for, py::arg("seconds"))
      .def("then", &CallFuture::then_call, py::arg("callback"))
      .def("add_done_callback", &CallFuture::when_done_call, py::arg("callback"))
      .def("cancel", &CallFuture::cancel);
}

}  // namespace hawser::bindings
