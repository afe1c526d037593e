#pragma once

#include <c10/core/Storage.h>

#include "hawser/base/buffer.h"

// Memory that is a c10::Storage here and a Buffer there, in both directions without a copy.
namespace hawser::tensor {

// A storage whose memory is the buffer's. The buffer's owner is let go of when the storage dies, or
// when the storage is resized (it then moves to memory of libtorch's allocator, like any other).
// Memory that is not aligned for every dtype is copied.
c10::Storage adopt(Buffer buffer);

// All bytes of a CPU storage, as a buffer that keeps them alive.
//
// Hand-back: for a storage that adopt() made, the buffer has the very owner that was adopted, not
// one that wraps the storage. So once the last reference to that storage is gone, the owner's
// use_count() falls to the buffers that lend() returned: a transport that finds 1 there knows that
// nobody on this side can still see the memory, and may pass the block itself on. As long as a
// tensor, a view, an autograd graph or anybody else holds the storage, the count is higher. No
// decision is taken here, so there is no moment at which it could be wrong.
//
// The bytes are for reading: a copy-on-write storage is not materialised.
Buffer lend(const c10::Storage& storage);

}  // namespace hawser::tensor
