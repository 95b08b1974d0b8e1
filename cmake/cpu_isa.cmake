# The kernels of src/cpu/isa are compiled once per instruction set into a namespace of their own.
