"""The bugs of torch.distributed.rpc that hawser does not have."""
